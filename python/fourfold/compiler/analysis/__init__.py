"""What passes ask about a graph: views, iteration spaces, which nodes programs can compute and what is worth fusing."""

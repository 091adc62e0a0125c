// What hosts hand to kernels beside buffers, in words that both languages have. Included in a namespace of each.

typedef long Index;  // 64 bits in Metal's language, and on every system that has it

// f(inputs…) of `count` elements, of which a launch's threads begin with `first`.
struct DenseJob {
  Index first;
  Index count;
  Index step[4];  // of each input, from the second operand on: 0 where it is one value for all
  int inputs;
};

// Axes that a kernel steps through. Tensors with more that cannot be merged are walked over slice by slice.
enum { most_axes = 12 };

struct StridedJob {
  Index first;
  Index size[most_axes];
  Index stride[most_axes][4];  // in elements; out's first
  int axes;
  int inputs;
};

// Which tensors of a step there are. The others are neither read nor written.
enum {
  has_bias = 1,
  has_projection = 2,
  has_reset = 4,
  has_kept = 8,
  has_cells = 16,
  has_initial = 32,
  has_grad_output = 64,
  has_grad_h = 128,
  has_grad_c = 256,
  has_grad_initial = 512
};

// A step of a recurrent layer. Row b of it is row `first` + b of the sequence.
struct ForwardStep {
  Index rows;
  Index first;
  Index before;       // the first row of the step before it
  Index known;        // so many rows have a step before this one; the others begin with the initial states
  Index ending;       // rows from this one on have no later step
  Index hidden_size;
  Index input_size;   // of x, where the product is of h and x; otherwise 0
  Index leading_dim;  // of the weights
  int has;
};

// The backward takes the steps in the other order: `later` is the step that it took before.
struct BackwardStep {
  Index rows;         // 0 after the last, when what is left are the gradients of the initial states
  Index first;
  Index before;
  Index known;        // as the forward's
  Index later_rows;
  Index later_first;
  Index hidden_size;
  Index leading_dim;
  int has;
};

enum { most_width = 128 };  // of a layer of the fused network

enum { has_hidden_bias = 1, has_output_bias = 2, has_hidden = 4, has_grad_x = 8 };

struct MlpJob {
  Index batch;
  int input_size;
  int hidden_size;
  int output_size;
  int has;
};

// leftᵀ right (height, width), summed over the batch.
struct MlpWeightsJob {
  Index batch;
  int height;
  int width;
};

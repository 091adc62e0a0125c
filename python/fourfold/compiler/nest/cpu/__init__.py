"""Builds the loop nests of CPUs: loops over explicit vectors."""

// The arguments of kernels besides buffers, in the common subset of Metal and C++. Included in a namespace of each.

typedef long Index;  // 64 bits in Metal's language, and on every system with Metal

enum { elementwise_threads = 256, elements_per_thread = 4 };

// f(inputs…) of `count` elements; a launch's threads start at element `first`.
struct DenseJob {
  Index first;
  Index count;
  Index step[4];  // of each input: 1, or 0 for one value for all
  int inputs;
};

// The maximum number of axes of a kernel. Tensors with more unmergeable axes are processed slice by slice.
enum { most_axes = 12 };

struct StridedJob {
  Index first;
  Index size[most_axes];
  Index stride[most_axes][4];  // in elements; out's first
  int axes;
  int inputs;
};

// Threadgroups of a recurrent step, and its tiles of rows and units.
enum {
  step_threads = 128,
  simdgroup_lanes = 32,
  simdgroups = step_threads / simdgroup_lanes,
  few_rows = simdgroups,
  tile_rows = 16,
  tile_units = 16,
  tile_depth = 32,
  tile_pitch = tile_depth + 4  // padded so that rows begin in different banks
};

// Which tensors of a step are present. Others are neither read nor written.
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
  Index known;        // the number of rows with a previous step; the others start from the initial states
  Index ending;       // rows from this one on have no later step
  Index hidden_size;
  Index input_size;   // of x if the product includes x; otherwise 0
  Index leading_dim;  // of the weights
  int has;
};

// The backward runs the steps in the opposite order: `later` is the one that it ran before.
struct BackwardStep {
  Index rows;         // 0 after the last step, when only the gradients of the initial states remain
  Index first;
  Index before;
  Index known;        // as in the forward
  Index later_rows;
  Index later_first;
  Index hidden_size;
  Index leading_dim;
  int has;
};

enum { most_width = 128 };  // the maximum width of a layer of the fused network

enum {
  mlp_threads = 256,
  mlp_rows = 16,               // for each threadgroup
  mlp_pitch = most_width + 4,  // of a tile: padded so that rows begin in different banks
  mlp_tile = mlp_rows * mlp_pitch
};

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

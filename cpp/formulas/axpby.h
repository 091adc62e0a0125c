// z = αx + βy.
template <typename T>
struct Axpby {
  FOURFOLD_CONSTANT bool of_integers = true;
  T alpha;
  T beta;

  FOURFOLD_FN T forward(T x, T y) const { return alpha * x + beta * y; }
};

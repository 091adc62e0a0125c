// αx + βy, by the library that was built with this program.
#include <ATen/ATen.h>
#include <fourfold/fourfold.h>

#include <iostream>

int main() {
  const at::Tensor z = fourfold::axpby(at::ones({2}), at::full({2}, 10.0));
  std::cout << z[0].item<float>() << " " << z[1].item<float>() << "\n" << fourfold_build_facts();
}

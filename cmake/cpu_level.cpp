// Prints the best CPU level that this machine supports, with the code that chooses it at run time, as if all were
// built and FOURFOLD_CPU_CAPABILITY unset.
#define FOURFOLD_BUILT_LEVELS 31
#include "cpu/level.cpp"

#include <cstdio>

int main() {
  using namespace fourfold;
  std::fputs(cpu::choose(nullptr, cpu::best_of_cpu(), system::request_tiles).name, stdout);
  return 0;
}

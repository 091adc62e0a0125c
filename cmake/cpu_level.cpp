// Prints the best CPU level that this machine supports, with the code that chooses it at run time, as if all were
// built.
#define FOURFOLD_CPU_LEVEL_COUNT 5
#include "cpu/level.cpp"

#include <cstdio>

int main() {
  unsetenv("FOURFOLD_CPU_CAPABILITY");
  std::fputs(fourfold::cpu::level_choice().name, stdout);
  return 0;
}

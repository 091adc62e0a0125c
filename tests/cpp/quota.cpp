// Prints the CPU quota of the control groups described in a folder.
#include "cpu/quota.h"

#include <cstdio>

int main(int, char** words) {
  std::printf("%g\n", fourfold::cpu::cpu_quota(words[1]));
  return 0;
}

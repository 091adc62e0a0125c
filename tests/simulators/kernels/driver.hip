// Runs cases of the self-test: `selftest NAME...`, or `selftest right` for all but the faulty ones. Exits with 1 if one
// failed.
#include <cstring>

#include "selftest.h"

int main(int count, char** words) {
  bool all_right = count > 1;
  bool found = false;
  for (int k = 1; k < count; ++k) {
    for (const auto* cases : {&right_cases(), &host_cases(), &device_cases(), &faulty_cases()}) {
      for (const Case& it : *cases) {
        const bool in_right = std::strcmp(words[k], "right") == 0 && cases != &faulty_cases();
        if (!in_right && std::strcmp(words[k], it.name) != 0) continue;
        found = true;
        const bool right = it.run();
        std::printf("%s: %s\n", it.name, right ? "right" : "wrong");
        all_right = all_right && right;
      }
    }
  }
  if (!found) std::fprintf(stderr, "selftest: no such case\n");
  return found && all_right ? 0 : 1;
}

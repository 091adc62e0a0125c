// Prints which level is chosen on a CPU that has them all, and how often the system is asked whether tiles may be used,
// for what the first word asks for; the second says what the system answers.
#include "cpu/level.cpp"

#include <cstdio>

static int requests = 0;

int main(int, char** words) {
  const bool granted = std::string_view(words[2]) == "granted";
  const auto choice = fourfold::cpu::choose(
      words[1], fourfold::cpu::amx, granted ? [] { return ++requests > 0; } : [] { return ++requests < 0; });
  std::printf("%s %d", choice.name == nullptr ? choice.error.c_str() : choice.name, requests);
  return 0;
}

// Prints the level chosen for the first argument on a CPU whose best level is the third, and how often it requested
// permission to use tiles; the second argument is the system's reply.
#include "cpu/level.cpp"

#include <cstdio>

static int requests = 0;

int main(int, char** words) {
  const bool granted = std::string_view(words[2]) == "granted";
  const auto choice = fourfold::cpu::choose(
      words[1], std::atoi(words[3]), granted ? [] { return ++requests > 0; } : [] { return ++requests < 0; });
  std::printf("%s %d", choice.name == nullptr ? choice.error.c_str() : choice.name, requests);
  return 0;
}

// Compiles with the C++20 that fourfold::fourfold requires, and links nothing else.
#include <fourfold/library.h>

#include <concepts>

static_assert(std::integral<decltype(FOURFOLD_ABI_VERSION)>);

int main() {}

// The C++20 that fourfold::fourfold asks for, and no more.
#include <fourfold/library.h>

#include <concepts>

static_assert(std::integral<decltype(FOURFOLD_ABI_VERSION)>);

int main() {}

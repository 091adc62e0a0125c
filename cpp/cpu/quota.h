// The CPU quota of this process's control groups.
#pragma once

#include <string>

namespace fourfold::cpu {

// The number of CPUs whose time the process may use: the smallest quota of its control groups and their ancestors, of
// both versions. 0 without a quota. root: a prefix of all paths, for tests.
double cpu_quota(const std::string& root);

}  // namespace fourfold::cpu

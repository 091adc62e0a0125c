// What a control group lets this process have of the CPUs.
#pragma once

#include <string>

namespace fourfold::cpu {

// How many CPUs' time the process may take, by the smallest quota of its control groups: its own and all those that hold
// it, of both versions. 0 where there is none. Files are looked for under `root`, which is empty but in tests.
double cpu_quota(const std::string& root);

}  // namespace fourfold::cpu

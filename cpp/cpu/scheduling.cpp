// What a team needs to know of the machine that it runs on.
#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <thread>

#include "cpu/parallel.h"
#include "cpu/team.h"

namespace fourfold::cpu {
namespace {

// CPUs by a control group's quota, or 0 where there is none to be read.
double quota() {
  double limit = 0;
  double period = 0;
  if (std::FILE* file = std::fopen("/sys/fs/cgroup/cpu.max", "r")) {
    const int read = std::fscanf(file, "%lf %lf", &limit, &period);  // "max" where there is none
    std::fclose(file);
    return read == 2 && period > 0 ? limit / period : 0;
  }
  std::FILE* quota_file = std::fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "r");
  std::FILE* period_file = std::fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "r");
  const bool read = quota_file != nullptr && period_file != nullptr && std::fscanf(quota_file, "%lf", &limit) == 1 &&
                    std::fscanf(period_file, "%lf", &period) == 1 && limit > 0 && period > 0;
  if (quota_file != nullptr) std::fclose(quota_file);
  if (period_file != nullptr) std::fclose(period_file);
  return read ? limit / period : 0;
}

// CPUs that this thread may run on; asked each time, for a program may change it.
int64_t permitted_cpus() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  return std::max<int64_t>(1, std::thread::hardware_concurrency());
}

int64_t quota_in_threads() {
  static const double limit = quota();
  return limit > 0 ? static_cast<int64_t>(std::ceil(limit)) : std::numeric_limits<int64_t>::max();
}

}  // namespace

int64_t usable_threads() {
  const int64_t asked = torch_threads();
  return asked <= 1 ? 1 : std::min({asked, permitted_cpus(), quota_in_threads()});
}

int64_t wake_up_microseconds() { return 200; }

}  // namespace fourfold::cpu

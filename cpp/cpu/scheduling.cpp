// The machine's facts that a team needs: the number of usable threads, and their wake-up time.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <thread>
#include <type_traits>
#include <vector>

#include "cpu/parallel.h"
#include "cpu/quota.h"
#include "cpu/team.h"
#include "system/system.h"

namespace fourfold::cpu {
namespace {

// The OpenMP runtime of torch's threads; its functions are looked up by name.
class OpenMp {
 public:
  OpenMp() {
    const char* const library = system::openmp_of_torch();
    if (library == nullptr) return;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(system::symbol_of(library, name));
      return function != nullptr;
    };
    int (*places)() = nullptr;
    int (*size)(int) = nullptr;
    void (*members)(int, int*) = nullptr;
    if (find(bind_, "omp_get_proc_bind") && find(places, "omp_get_num_places") &&
        find(size, "omp_get_place_num_procs") && find(members, "omp_get_place_proc_ids")) {
      std::set<int> cpus;
      for (int place = 0; place < places(); ++place) {
        std::vector<int> ids(static_cast<size_t>(size(place)));
        members(place, ids.data());
        cpus.insert(ids.begin(), ids.end());
      }
      cpus_ = static_cast<int64_t>(cpus.size());
    }
  }

  // The number of CPUs that its threads are bound to by OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY; 0 if unbound.
  int64_t bound_cpus() const { return cpus_ > 0 && bind_() != 0 ? cpus_ : 0; }

 private:
  int (*bind_)() = nullptr;
  int64_t cpus_ = 0;
};

// The number of CPUs that torch's threads may run on. Queried each time, because a program may change it. The affinity
// of a thread that OpenMP has bound isn't enough: other threads are bound to other CPUs.
int64_t permitted_cpus() {
  static const OpenMp openmp;
  if (const int64_t bound = openmp.bound_cpus(); bound > 0) return bound;
  if (const int64_t permitted = system::permitted_cpus(); permitted > 0) return permitted;
  return std::max<int64_t>(1, std::thread::hardware_concurrency());
}

int64_t quota_in_threads() {
  static const double limit = cpu_quota("");
  return limit > 0 ? static_cast<int64_t>(std::ceil(limit)) : std::numeric_limits<int64_t>::max();
}

}  // namespace

int64_t usable_threads() {
  const int64_t asked = torch_threads();
  return asked <= 1 ? 1 : std::min({asked, permitted_cpus(), quota_in_threads()});
}

int64_t wake_up_microseconds() { return 200; }

}  // namespace fourfold::cpu

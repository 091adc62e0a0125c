#include "cpu/quota.h"

#include <fstream>
#include <sstream>
#include <vector>

namespace fourfold::cpu {
namespace {

// A control group hierarchy with CPU quotas.
struct Hierarchy {
  bool unified = false;  // version 2
  std::string mounted;   // the mount point
  std::string top;       // the group that is mounted there
};

bool has_word(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

// Lines of mountinfo: id parent device root mountpoint options [optional fields] - type source options.
std::vector<Hierarchy> hierarchies(const std::string& root) {
  std::vector<Hierarchy> found;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line.substr(0, dash));
    std::istringstream after(line.substr(dash + 3));
    std::string skipped;
    std::string type;
    std::string options;
    Hierarchy hierarchy;
    before >> skipped >> skipped >> skipped >> hierarchy.top >> hierarchy.mounted;
    after >> type >> skipped >> options;
    hierarchy.unified = type == "cgroup2";
    if (hierarchy.unified || (type == "cgroup" && has_word(options, "cpu"))) found.push_back(hierarchy);
  }
  return found;
}

// The group of this process. Lines of /proc/self/cgroup: number:controllers:group, without controllers in version 2.
std::string own_group(const std::string& root, bool unified) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (unified ? controllers.empty() : has_word(controllers, "cpu")) return line.substr(second + 1);
  }
  return "";
}

double number_in(const std::string& path) {
  std::ifstream file(path);
  double value = 0;
  return file >> value ? value : 0;
}

// The quota of one group; "max" and -1 mean no quota.
double quota_of(const std::string& folder, bool unified) {
  double limit = 0;
  double period = 0;
  if (unified) {
    std::ifstream file(folder + "/cpu.max");
    if (!(file >> limit >> period)) return 0;
  } else {
    limit = number_in(folder + "/cpu.cfs_quota_us");
    period = number_in(folder + "/cpu.cfs_period_us");
  }
  return limit > 0 && period > 0 ? limit / period : 0;
}

}  // namespace

double cpu_quota(const std::string& root) {
  double smallest = 0;
  for (const Hierarchy& hierarchy : hierarchies(root)) {
    std::string group = own_group(root, hierarchy.unified);
    // A container sees its own group as the root, but /proc/self/cgroup may have the host's path of it.
    if (hierarchy.top != "/" && group.compare(0, hierarchy.top.size(), hierarchy.top) == 0) {
      group.erase(0, hierarchy.top.size());
    }
    for (;; group.erase(group.rfind('/'))) {
      const double quota = quota_of(root + hierarchy.mounted + group, hierarchy.unified);
      if (quota > 0 && (smallest == 0 || quota < smallest)) smallest = quota;
      if (group.find('/') == std::string::npos) break;
    }
  }
  return smallest;
}

}  // namespace fourfold::cpu

#include "cpu/quota.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <string_view>
#include <vector>

#include "system/text.h"

namespace fourfold::cpu {
namespace {

using system::split;

// A control group hierarchy with CPU quotas.
struct Hierarchy {
  bool unified = false;  // version 2
  std::string mounted;   // the mount point
  std::string top;       // the group that is mounted there
};

// Empty if the file can't be read. The kernel gives the files of /proc no size.
std::string text_of(const std::string& path) {
  std::string text;
  std::FILE* const file = std::fopen(path.c_str(), "r");
  if (file == nullptr) return text;
  char block[4096];
  while (const size_t count = std::fread(block, 1, sizeof block, file)) text.append(block, count);
  std::fclose(file);
  return text;
}

bool has_word(std::string_view list, std::string_view word) {
  const std::vector<std::string_view> words = split(list, ',');
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Lines of mountinfo: id parent device root mountpoint options [optional fields] - type source options.
std::vector<Hierarchy> hierarchies(const std::string& root) {
  std::vector<Hierarchy> found;
  const std::string text = text_of(root + "/proc/self/mountinfo");
  for (const std::string_view line : split(text, '\n')) {
    const size_t dash = line.find(" - ");
    if (dash == line.npos) continue;
    const std::vector<std::string_view> before = split(line.substr(0, dash), ' '), after = split(line.substr(dash + 3), ' ');
    if (before.size() < 5 || after.size() < 3) continue;
    const bool unified = after[0] == "cgroup2";
    if (!unified && (after[0] != "cgroup" || !has_word(after[2], "cpu"))) continue;
    found.push_back({unified, std::string(before[4]), std::string(before[3])});
  }
  return found;
}

// The group of this process. Lines of /proc/self/cgroup: number:controllers:group, without controllers in version 2.
std::string own_group(const std::string& root, bool unified) {
  const std::string text = text_of(root + "/proc/self/cgroup");
  for (const std::string_view line : split(text, '\n')) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    if (unified ? controllers.empty() : has_word(controllers, "cpu")) return std::string(line.substr(second + 1));
  }
  return "";
}

// The number that the text begins with; 0 if there is none.
double number_in(std::string_view text) {
  int64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return static_cast<double>(number);
}

// The quota of one group; "max" and -1 mean no quota.
double quota_of(const std::string& folder, bool unified) {
  std::string text = text_of(folder + (unified ? "/cpu.max" : "/cpu.cfs_quota_us"));
  if (!unified) text.append(" ").append(text_of(folder + "/cpu.cfs_period_us"));
  const std::vector<std::string_view> numbers = split(text, ' ');
  if (numbers.size() < 2) return 0;
  const double limit = number_in(numbers[0]), period = number_in(numbers[1]);
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

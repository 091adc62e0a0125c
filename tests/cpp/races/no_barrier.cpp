// A team as in cpp/cpu/team.cpp with one share per member, whose members don't wait for each other.
#include "cpu/parallel.h"
#include "cpu/team.h"

namespace fourfold::cpu {

struct Team {
  int64_t shares;
};

int64_t Member::members() const { return team_.shares; }
int64_t Member::begin() const { return index_; }
int64_t Member::end() const { return index_ + 1; }
void Member::wait() {}

void run_team(int64_t shares, void (*body)(void*, Member&), void* context) {
  Team team{.shares = shares};
  parallel(shares, 1, [&](int64_t begin, int64_t end) {
    for (int64_t share = begin; share < end; ++share) {
      Member member(team, share);
      body(context, member);
    }
  });
}

}  // namespace fourfold::cpu

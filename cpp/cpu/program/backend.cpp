#include "program/backend.h"

#include <torch/headeronly/core/DeviceType.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "cpu/program/interpreter.h"
#include "cpu/program/loops.h"
#include "cpu/program/product.h"
#include "cpu/team.h"

namespace fourfold::cpu {
namespace {

using program::Generator;

class Scheduled final : public program::Executable {
 public:
  Scheduled(const program::Program& program, std::string_view text)
      : program_(program), schedule_(schedule_of(program)), nests_(program::nests_of(text)) {}

  std::unique_ptr<const program::PreparedCall> prepare(
      const std::vector<int64_t>& sizes, const program::Tensor* inputs, const program::Tensor* outputs) const override;
  std::string run_steps(const std::vector<int64_t>& sizes, const program::Tensor* inputs, const program::Tensor* outputs,
                        const fourfold_steps& steps) const override;
  std::string layout_of_steps(const std::vector<int64_t>& sizes, const program::Tensor* inputs, const program::Tensor* outputs,
                              const fourfold_steps& steps) const override {
    const Loops loops(program_, schedule_, sizes, inputs, outputs, false, &steps);
    return loops.rows() == 0 || loops.columns() == 0 ? std::string() : loops.layout();
  }
  void use(Generator generator) override { generator_.store(generator, std::memory_order_relaxed); }

  const program::Program& program() const { return program_; }
  const Schedule& schedule() const { return schedule_; }
  Generator generator() const { return generator_.load(std::memory_order_relaxed); }
  program::Nests& nests() const { return nests_; }

 private:
  const program::Program& program_;
  const Schedule schedule_;
  program::Nests& nests_;
  std::atomic<Generator> generator_{Generator::interpreter};
};

// The loops of a call, and its compiled nest once there is one.
class NestedLoops {
 public:
  NestedLoops(const Scheduled& made, Loops loops) : made_(made), loops_(std::move(loops)) {}

  const Loops& loops() const { return loops_; }

  // False if there is no nest.
  bool run(const program::Tensor* inputs, const program::Tensor* outputs) const {
    const program::Nest* const nest = find();
    if (nest != nullptr) loops_.run(*nest, inputs, outputs);
    return nest != nullptr;
  }

  // Null if there is no nest (yet). A found nest is never removed.
  const program::Nest* find() const {
    const Generator generator = made_.generator();
    if (generator == Generator::interpreter || loops_.rows() == 0 || loops_.columns() == 0) return nullptr;
    if (is_known_.load(std::memory_order_acquire)) return nest_;
    const auto answer = made_.nests().find(loops_.layout(), generator, loops_.work());
    if (!answer.is_final) return nullptr;
    nest_.store(answer.nest, std::memory_order_relaxed);
    is_known_.store(true, std::memory_order_release);
    return answer.nest;
  }

 private:
  const Scheduled& made_;
  const Loops loops_;
  mutable std::atomic<const program::Nest*> nest_{nullptr};
  mutable std::atomic<bool> is_known_{false};
};

// Runs a compiled loop nest if there is one, otherwise the interpreter.
class ScheduledCall final : public program::PreparedCall {
 public:
  ScheduledCall(const Scheduled& made, const std::vector<int64_t>& sizes, const program::Tensor* inputs,
                const program::Tensor* outputs)
      : made_(made), sizes_(sizes), nested_(made, Loops(made.program(), made.schedule(), sizes, inputs, outputs)) {
    if (nested_.loops().is_large()) {
      streamed_.emplace(made, Loops(made.program(), made.schedule(), sizes, inputs, outputs, true));
      if (layout() == nested_.loops().layout()) streamed_.reset();  // no output allows non-temporal stores
    }
  }

  void run(const program::Tensor* inputs, const program::Tensor* outputs) const override {
    const bool streams = streamed_ && streamed_->loops().can_stream(inputs, outputs);
    if ((streams ? *streamed_ : nested_).run(inputs, outputs)) return;
    interpret(made_.program(), made_.schedule(), sizes_, inputs, outputs);
  }
  // Parts don't use non-temporal stores: the loops that split a call into parts read its outputs soon.
  int64_t parts() const override {
    const program::Nest* const nest = nested_.find();
    return nest == nullptr ? 1 : nested_.loops().parts(*nest);
  }
  void run_part(const program::Tensor* inputs, const program::Tensor* outputs, int64_t part, int64_t parts) const override {
    nested_.loops().run_part(*nested_.find(), inputs, outputs, part, parts);
  }
  const std::string& layout() const override { return (streamed_ ? *streamed_ : nested_).loops().layout(); }

 private:
  const Scheduled& made_;
  const std::vector<int64_t> sizes_;
  NestedLoops nested_;
  std::optional<NestedLoops> streamed_;
};

std::unique_ptr<const program::PreparedCall> Scheduled::prepare(
    const std::vector<int64_t>& sizes, const program::Tensor* inputs, const program::Tensor* outputs) const {
  return std::make_unique<ScheduledCall>(*this, sizes, inputs, outputs);
}

std::string Scheduled::run_steps(const std::vector<int64_t>& sizes, const program::Tensor* inputs,
                                 const program::Tensor* outputs, const fourfold_steps& steps) const {
  if (generator() == Generator::interpreter) return "the generator is the interpreter";
  const Loops loops(program_, schedule_, sizes, inputs, outputs, false, &steps);
  if (loops.rows() == 0 || loops.columns() == 0) return program::no_elements;
  const auto answer = nests_.find(loops.layout(), generator(), loops.work());
  if (answer.nest == nullptr) return answer.is_final ? "there is no nest: " + answer.reason : "its nest is not compiled yet";
  loops.run(*answer.nest, inputs, outputs);
  return {};
}

class TeamMember final : public program::Member {
 public:
  TeamMember(cpu::Member& member, int64_t shares) : member_(member), shares_(shares) {}

  int64_t begin() const override { return member_.begin(); }
  int64_t end() const override { return member_.end(); }
  int64_t shares() const override { return shares_; }
  void wait() override { member_.wait(); }

 private:
  cpu::Member& member_;
  int64_t shares_;
};

void together(int64_t most, const std::function<void(program::Member&)>& body) {
  const int64_t shares = std::min(most, usable_threads());
  team(shares, [&](cpu::Member& member) {
    TeamMember own(member, shares);
    body(own);
  });
}

constexpr program::Backend backend{
    .compile = [](const program::Program& program, std::string_view text) -> std::unique_ptr<program::Executable> {
      return std::make_unique<Scheduled>(program, text);
    },
    .product_with = product_with,
    .together = together,
};

const program::BackendRegistration registration(static_cast<int32_t>(torch::headeronly::DeviceType::CPU), backend);

}  // namespace
}  // namespace fourfold::cpu

#include "gpu_worker/executor/step_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer {
namespace {

using testing::ElementsAre;

TEST(StepCommandTest, ACommandIsEmptyUntilAnyListHasAnEntry) {
  StepCommand command;
  EXPECT_TRUE(command.empty());
  command.rows.emplace_back();
  EXPECT_FALSE(command.empty());
  command.Clear();
  EXPECT_TRUE(command.empty());
  command.end_save.push_back(1);
  EXPECT_FALSE(command.empty());
}

TEST(StepCommandTest, NamesItsSequencesOnce) {
  StepCommand command;
  command.drop = {5, 3};
  command.begin = {{.lane = 1, .members = {7, 3}}};
  command.rows = {{.id = 9}, {.id = 9}};
  command.admit = {{.id = 5, .blocks = {}}};
  command.end_save = {100};  // names a save
  EXPECT_THAT(command.Sequences(), ElementsAre(3, 5, 7, 9));
}

}  // namespace
}  // namespace retroinfer

//! Every OOM kill as an operator reads it: the real daemon, real kills, and each incident asserted field by field.
mod burst;
mod container;
mod dying;
mod end;
mod group;
mod node;
mod pod;
mod scene;
mod sharer;
mod system;
mod untraced;

use enforcer_tests::expect::assert_holds;
use scene::{Scene, pod_with};

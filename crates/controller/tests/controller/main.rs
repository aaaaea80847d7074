//! The controllers beside an API server in memory.

mod cluster;
mod embedded;
mod forks;
mod hostile;
mod late_env;
mod lost_answers;
mod pod_snapshots;
mod takeover;
mod unreadable;
mod writes;

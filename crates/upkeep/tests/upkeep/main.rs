//! The controllers beside an API server in memory.

mod embedded;
mod unreadable;

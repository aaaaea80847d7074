//! The protections of a jail, each attacked from inside.
//!
//! `hutch_jail::attack` names every attack once, with what it has to find. The table is run as root and as an ordinary user in native
//! jails (`protections`), and once more where the protection is missing (`controls`), in a jail of
//! `Profile::Runtime` (root of the machine with all capabilities, no filter, in namespaces of its own) or with no
//! jail at all: there each attack must *not* find it. So no attack can stand in the table that could not fail.

mod bounds;
mod capabilities;
mod closed;
mod controls;
mod ending;
mod gvisor;
mod harness;
mod hosts;
mod network;
mod programs;
mod protections;
mod service;
mod wardens;

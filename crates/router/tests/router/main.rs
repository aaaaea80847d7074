//! The router with real connections: clients, Sandboxes and an API server are ports of this machine.

mod activity;
mod admitted;
mod answers;
mod asking;
mod bounds;
mod certificates;
mod contract;
mod directory;
mod hostile;
mod routed;
mod served;
mod slow;
mod streams;
mod waking;

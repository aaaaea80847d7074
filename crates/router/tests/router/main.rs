//! Router with real connections: clients, Sandboxes and the API server are ports of this machine.

mod activity;
mod activity_poll;
mod admitted;
mod answers;
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

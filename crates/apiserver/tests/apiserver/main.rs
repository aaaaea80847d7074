//! The API server, from outside and beside a real one.

mod crud;
mod differential;
mod exchanges;
mod hostile;
mod policies;
mod raw;
mod streams;
mod users;
mod webhooks;

//! Admission: who calls, and which Sandbox and port a request names.

pub(crate) mod access;
pub(crate) mod pod_key;
pub(crate) mod target;
pub(crate) mod tls;

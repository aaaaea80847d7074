//! Limits of this process: descriptors, how many of them connections from outside may take, and core files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The connections of one listener take at most one in so many descriptors. `hutch up` has two listeners, and its router
/// needs two descriptors for each connection, so that a quarter is left for what the process does itself: probes, streams
/// of Pods, files.
const PART: u64 = 4;
/// Fewest connections of a listener, however low the limit is.
const CONNECTIONS_MIN: usize = 16;

/// Raises the soft limit of descriptors to the hard one. What cannot be raised stays as it is.
///
/// A program that is started later inherits it. The jails of `hutch up` do not: each has limits of its own.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit of descriptors stays as it is");
    }
}

/// Lets the kernel write no core file of this process, and of those that it starts: its memory has secrets. A limit of 1 also
/// stops a handler that `core_pattern` names.
pub fn forbid_core_files() {
    let most = getrlimit(Resource::Core).maximum.map_or(1, |maximum| maximum.min(1));
    let limit = Rlimit { current: Some(most), maximum: Some(most) };
    if let Err(error) = setrlimit(Resource::Core, limit) {
        tracing::debug!(%error, "the limit of core files stays as it is");
    }
}

/// Connections that one listener may have at a time: `most`, or fewer where descriptors are scarce.
pub fn connection_limit(most: usize) -> usize {
    share(getrlimit(Resource::Nofile).current, most)
}

fn share(limit: Option<u64>, most: usize) -> usize {
    let Some(limit) = limit else { return most };
    usize::try_from(limit / PART).unwrap_or(usize::MAX).max(CONNECTIONS_MIN).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_the_rest() {
        for (limit, most, connections) in [
            (Some(1024), 4096, 256),
            (Some(1 << 20), 4096, 4096),
            (Some(1 << 20), 32_768, 32_768),
            (Some(10), 4096, CONNECTIONS_MIN),
            (Some(10), 2, 2),
            (None, 4096, 4096),
        ] {
            assert_eq!(share(limit, most), connections, "{limit:?}");
        }
    }
}

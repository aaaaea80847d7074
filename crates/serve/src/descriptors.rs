//! Descriptors of this process: how many it may have, and how many of them connections from outside may take.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// One listener's connections take at most this part of all descriptors. A process has at most two listeners that
/// strangers reach, and the router needs two descriptors for each connection, so that a quarter is left for what the
/// process does itself: probes, streams of Pods, files.
const PART: u64 = 4;
/// Fewest connections of a listener, however low the limit is.
const CONNECTIONS_MIN: usize = 16;

/// Raises the soft limit of descriptors to the hard one. What cannot be raised stays as it is.
///
/// Programs started later inherit the limit. Jails do not: they have limits of their own.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit of descriptors stays as it is");
    }
}

/// Connections that one listener may have at a time: `most`, or fewer where descriptors are scarce.
pub(crate) fn connections(most: usize) -> usize {
    share(getrlimit(Resource::Nofile).current, most)
}

fn share(limit: Option<u64>, most: usize) -> usize {
    let Some(limit) = limit else { return most };
    usize::try_from(limit / PART).unwrap_or(usize::MAX).clamp(CONNECTIONS_MIN, most)
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
            (None, 4096, 4096),
        ] {
            assert_eq!(share(limit, most), connections, "{limit:?}");
        }
    }
}

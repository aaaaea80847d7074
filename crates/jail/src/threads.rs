//! Checks that this program has one thread.

use std::time::{Duration, Instant};

use crate::error::Error;

/// Maximum time until the kernel has released a thread that has ended. What waits for the thread continues before that.
const RELEASE: Duration = Duration::from_millis(200);
/// Time between two looks at the threads.
const PAUSE: Duration = Duration::from_micros(50);

/// Checks that this program has one thread.
///
/// # Errors
/// It has others, or they cannot be counted.
pub(crate) fn check_single() -> Result<(), Error> {
    wait_for_one(|| {
        // Two links and one for each thread: the cheapest way to count threads.
        let tasks = rustix::fs::stat("/proc/self/task").map_err(|_| Error::Threads)?;
        Ok(tasks.st_nlink == 3)
    })
}

fn wait_for_one(mut is_one: impl FnMut() -> Result<bool, Error>) -> Result<(), Error> {
    let start = Instant::now();
    while !is_one()? {
        if start.elapsed() > RELEASE {
            return Err(Error::Threads);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_that_is_about_to_leave_is_waited_for() {
        let mut looks = 0;
        let left = wait_for_one(|| {
            looks += 1;
            Ok(looks == 4)
        });
        assert!(left.is_ok() && looks == 4, "{left:?} {looks}");
        assert!(matches!(wait_for_one(|| Ok(false)), Err(Error::Threads)));
        assert!(matches!(check_single(), Err(Error::Threads)), "the tests run on threads");
    }
}

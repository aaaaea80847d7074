//! Threads that serve connections, each connection by one of them from its first byte to its last: client, sandbox and
//! timers of a request meet on one thread, and no other one has to be woken for it.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use hutch_serve::Shutdown;
use tokio::runtime::{Builder, Handle};

thread_local! {
    /// Which of them this one is; 0 where it is none of them.
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// The number of the present thread. What is bound to a thread's runtime is kept under it.
pub(crate) fn number() -> usize {
    NUMBER.get()
}

struct Thread {
    runtime: Handle,
    connections: AtomicUsize,
}

/// Threads, each with a runtime of its own, until the last clone is dropped.
#[derive(Clone)]
pub struct Threads(Arc<Group>);

struct Group {
    threads: Vec<Arc<Thread>>,
    running: Mutex<Vec<JoinHandle<()>>>,
    stop: Shutdown,
}

impl Drop for Group {
    fn drop(&mut self) {
        self.stop.trigger();
    }
}

impl Threads {
    /// Starts so many, one at least.
    ///
    /// # Errors
    /// What the system says when it starts no thread or has no descriptor for one.
    pub fn start(count: usize) -> io::Result<Threads> {
        let stop = Shutdown::new();
        let (mut threads, mut running) = (Vec::new(), Vec::new());
        for number in 1..=count.max(1) {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            threads.push(Arc::new(Thread {
                runtime: runtime.handle().clone(),
                connections: AtomicUsize::new(0),
            }));
            let until = stop.wait();
            let thread = std::thread::Builder::new().name(format!("router-{number}"));
            running.push(thread.spawn(move || {
                NUMBER.set(number);
                runtime.block_on(until);
                // Tasks that block, if any, do not keep the thread.
                runtime.shutdown_background();
            })?);
        }
        Ok(Threads(Arc::new(Group { threads, running: Mutex::new(running), stop })))
    }

    /// Cuts every connection and returns when the threads have ended. Not to be called on one of them.
    pub fn stop(&self) {
        self.0.stop.trigger();
        let mut running = self.0.running.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in running.drain(..) {
            // One that panicked has ended too.
            let _ = thread.join();
        }
    }

    /// Runs what serves a connection on the thread that has the fewest, to its end.
    pub(crate) async fn run(&self, serve: impl Future<Output = ()> + Send + 'static) {
        let fewest = self.0.threads.iter().min_by_key(|thread| thread.connections.load(Ordering::Relaxed));
        // There is one at least.
        let Some(thread) = fewest else { return serve.await };
        let place = Place::take(thread);
        let served = thread.runtime.spawn(async move {
            let _place = place;
            serve.await;
        });
        // It fails only when the threads are stopped, and then there is nothing left to wait for.
        let _ = served.await;
    }
}

struct Place(Arc<Thread>);

impl Place {
    fn take(thread: &Arc<Thread>) -> Place {
        thread.connections.fetch_add(1, Ordering::Relaxed);
        Place(thread.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_takes_its_share_and_keeps_it() {
        let threads = Threads::start(2).unwrap();
        let (told, mut numbers) = tokio::sync::mpsc::unbounded_channel();
        let hold = Shutdown::new();
        let serve = |_| {
            let (told, hold) = (told.clone(), hold.clone());
            let own = threads.clone();
            tokio::spawn(async move {
                own.run(async move {
                    let before = number();
                    told.send(before).unwrap();
                    hold.wait().await;
                    assert_eq!(number(), before);
                })
                .await;
            })
        };
        let served: Vec<_> = (0..6).map(serve).collect();
        let mut seen = Vec::new();
        for _ in 0..6 {
            seen.push(numbers.recv().await.unwrap());
        }
        seen.sort_unstable();
        assert_eq!(seen, [1, 1, 1, 2, 2, 2]);
        assert_eq!(number(), 0, "not this one");
        hold.trigger();
        for each in served {
            each.await.unwrap();
        }
        threads.stop();
    }
}

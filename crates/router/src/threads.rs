//! Threads that serve connections. One thread serves a connection from its first byte to its last: client,
//! Sandbox and timers of a request share it, so no other thread has to be woken.

use std::cell::OnceCell;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hutch_serve::Shutdown;
use tokio::runtime::{Builder, Handle};

/// Time that a thread polls for a response before it sleeps: as long as waking an idle processor takes, 45 us
/// in a virtual machine. So polling costs at most twice as much as sleeping, and a prompt response is
/// forwarded at once.
const AWAKE: Duration = Duration::from_micros(50);

thread_local! {
    /// Number of this thread, from 1 on, and the responses that all threads wait for; empty on other threads.
    static OWN: OnceCell<(usize, Arc<AtomicUsize>)> = const { OnceCell::new() };
}

/// Returns the number of the current thread, 0 on other threads. Resources of a thread's runtime are keyed by
/// it.
pub(crate) fn number() -> usize {
    OWN.with(|own| own.get().map_or(0, |(number, _)| *number))
}

/// Waits for a response. Polls first if it is the only response that these threads wait for. Otherwise other
/// requests need the processor.
pub(crate) async fn attend<T>(answer: impl Future<Output = T>) -> T {
    let awaited = OWN.with(|own| own.get().map(|(_, awaited)| awaited.clone()));
    let Some(awaited) = awaited else { return answer.await };
    let mut answer = pin!(answer);
    let awaited = Awaited::begin(awaited);
    if awaited.alone() {
        let began = Instant::now();
        while awaited.alone() && began.elapsed() < AWAKE {
            // Other tasks run in between.
            tokio::select! {
                biased;
                answer = &mut answer => return answer,
                () = tokio::task::yield_now() => {}
            }
        }
    }
    answer.await
}

struct Awaited(Arc<AtomicUsize>);

impl Awaited {
    fn begin(count: Arc<AtomicUsize>) -> Awaited {
        count.fetch_add(1, Ordering::Relaxed);
        Awaited(count)
    }

    fn alone(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 1
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Thread {
    runtime: Handle,
    connections: AtomicUsize,
}

/// Threads, each with a runtime of its own. They end when the last clone is dropped.
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
    /// Starts this number of threads, at least one.
    ///
    /// # Errors
    /// The error of the system if it starts no thread or has no descriptor for one.
    pub fn start(count: usize) -> io::Result<Threads> {
        let stop = Shutdown::new();
        let (mut threads, mut running) = (Vec::new(), Vec::new());
        let awaited = Arc::new(AtomicUsize::new(0));
        for number in 1..=count.max(1) {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            threads.push(Arc::new(Thread {
                runtime: runtime.handle().clone(),
                connections: AtomicUsize::new(0),
            }));
            let (until, awaited) = (stop.wait(), awaited.clone());
            let thread = std::thread::Builder::new().name(format!("router-{number}"));
            running.push(thread.spawn(move || {
                let _ = OWN.with(|own| own.set((number, awaited)));
                runtime.block_on(until);
                // Blocking tasks, if any, do not keep the thread.
                runtime.shutdown_background();
            })?);
        }
        Ok(Threads(Arc::new(Group { threads, running: Mutex::new(running), stop })))
    }

    /// Closes every connection and returns when the threads have ended. Must not be called on one of them.
    pub fn stop(&self) {
        self.0.stop.trigger();
        let mut running = self.0.running.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in running.drain(..) {
            // A thread that panicked has ended too.
            let _ = thread.join();
        }
    }

    /// Runs the handler of a connection on the thread with the fewest connections, to its end.
    pub(crate) async fn run(&self, serve: impl Future<Output = ()> + Send + 'static) {
        let fewest = self.0.threads.iter().min_by_key(|thread| thread.connections.load(Ordering::Relaxed));
        // There is at least one.
        let Some(thread) = fewest else { return serve.await };
        let place = Place::take(thread);
        let served = thread.runtime.spawn(async move {
            let _place = place;
            serve.await;
        });
        // Fails only after the threads were stopped; nothing is left to wait for.
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
    async fn connections_are_spread_and_stay_on_their_thread() {
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

    /// Returns the number of polls of a response that arrived after `wait`.
    async fn looks(wait: Duration) -> usize {
        let (mut looks, mut answer) = (0, pin!(tokio::time::sleep(wait)));
        attend(std::future::poll_fn(|context| {
            looks += 1;
            answer.as_mut().poll(context)
        }))
        .await;
        looks
    }

    #[tokio::test]
    async fn a_single_response_is_polled_for() {
        let threads = Threads::start(1).unwrap();
        let wait = Duration::from_millis(20);
        let (told, mut counts) = tokio::sync::mpsc::unbounded_channel();
        let asked = told.clone();
        threads.run(async move { asked.send(looks(wait).await).unwrap() }).await;
        let alone = counts.recv().await.unwrap();
        assert!(alone > 2, "{alone}: when it begins, when it is there, and between");
        let asked = told.clone();
        threads
            .run(async move {
                let other = tokio::spawn(attend(std::future::pending::<()>()));
                tokio::task::yield_now().await;
                asked.send(looks(wait).await).unwrap();
                other.abort();
            })
            .await;
        assert_eq!(counts.recv().await.unwrap(), 2, "another response is pending");
        assert_eq!(looks(wait).await, 2, "it is not one of the threads");
        threads.stop();
    }
}

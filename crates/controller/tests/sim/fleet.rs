//! The controllers that run: started, stopped, killed, two at a time, with clocks that are set.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use hutch_apiserver::{ApiServer, Identity};
use hutch_controller::Config;
use hutch_serve::{Ambient, Shutdown};
use jiff::SignedDuration;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::dice::Dice;
use crate::stage::Stage;
use crate::wire::Wire;

pub(crate) struct Fleet {
    server: ApiServer,
    stage: Arc<Stage>,
    dice: Dice,
    config: Config,
    started: u32,
    running: Vec<Running>,
    /// Since when two run.
    doubled: Option<Duration>,
}

struct Running {
    wire: Wire,
    shutdown: Shutdown,
    task: JoinHandle<()>,
    /// Milliseconds by which its clock is wrong.
    skew: Arc<AtomicI64>,
}

impl Fleet {
    pub(crate) fn new(server: ApiServer, stage: Arc<Stage>, dice: Dice) -> Self {
        let config = config(&dice);
        Fleet { server, stage, dice, config, started: 0, running: Vec::new(), doubled: None }
    }

    pub(crate) fn start(&mut self) {
        self.started += 1;
        let name = format!("controller{}", self.started);
        let dice = Dice::new(self.dice.number(), &name);
        let server = self.server.client_ahead(Identity::admin(), "default");
        let wire = Wire::new(&name, server, &self.stage, dice.clone(), true);
        let skew = Arc::new(AtomicI64::new(0));
        let (stage, wrong) = (self.stage.clone(), skew.clone());
        let now = move || stage.now() + SignedDuration::from_millis(wrong.load(Ordering::SeqCst));
        let config = Config { ambient: Ambient::new(now, move || dice.number()), ..self.config.clone() };
        let (shutdown, client) = (Shutdown::new(), wire.client());
        let stop = shutdown.clone();
        let task = tokio::spawn(async move {
            hutch_controller::run(client, config, stop).await;
        });
        self.stage.note(&format!("{name} starts"));
        self.running.push(Running { wire, shutdown, task, skew });
        if self.running.len() > 1 {
            self.doubled.get_or_insert(self.stage.elapsed());
        }
    }

    /// Things happen to the controllers, until so much time has passed.
    pub(crate) async fn live(&mut self, length: Duration) {
        let end = self.stage.elapsed() + length;
        while self.stage.elapsed() < end {
            sleep(self.dice.ms(200..6000)).await;
            self.bury();
            match self.dice.below(100) {
                0..15 => self.kill(0),
                15..35 => self.running[0].wire.kill_at(1 + self.dice.below(12) as i64),
                35..43 => self.stop().await,
                43..55 if self.running.len() < 2 => self.start(),
                55..70 if self.running.len() == 2 => self.kill(self.dice.below(2) as usize),
                70..80 => self.stage.outage(self.dice.ms(500..10_000)),
                80..95 => self.set_clock(),
                _ => {}
            }
            if self.running.is_empty() {
                sleep(self.dice.ms(1..4000)).await;
                self.start();
            }
        }
        self.settle();
    }

    /// One controller is left, with the right time.
    pub(crate) fn settle(&mut self) {
        self.running.iter().for_each(|running| running.wire.spare());
        self.bury();
        while self.running.len() > 1 {
            self.kill(0);
        }
        if self.running.is_empty() {
            self.start();
        }
        self.running[0].skew.store(0, Ordering::SeqCst);
    }

    /// The one controller's clock is wrong by so much from now on.
    pub(crate) fn clock(&self, wrong: SignedDuration) {
        let ms = i64::try_from(wrong.as_millis()).expect("a few hours");
        self.running[0].skew.store(ms, Ordering::SeqCst);
        self.stage.note(&format!("clock wrong by {ms} ms"));
    }

    /// The one controller is killed and another one starts.
    pub(crate) fn replace(&mut self) {
        self.kill(0);
    }

    /// The one controller dies at its so manieth write.
    pub(crate) fn kill_at(&self, write: i64) {
        self.running[0].wire.kill_at(write);
    }

    fn kill(&mut self, which: usize) {
        self.running[which].wire.kill();
        self.stage.note("killed");
        self.bury();
    }

    /// Those that have died run no more; another one is started at once when none is left.
    fn bury(&mut self) {
        self.running.retain(|running| {
            let dead = running.wire.is_dead();
            if dead {
                running.task.abort();
            }
            !dead
        });
        if self.running.len() < 2
            && let Some(from) = self.doubled.take()
        {
            self.stage.doubled(from);
        }
        if self.running.is_empty() {
            self.start();
        }
    }

    async fn stop(&mut self) {
        let running = self.running.remove(0);
        running.shutdown.trigger();
        // One that does not come to its end within its time is killed, as any process.
        let done = tokio::time::timeout(Duration::from_secs(10), running.task).await;
        self.stage.note(&format!("stopped {}", done.is_ok()));
        running.wire.kill();
        self.bury();
    }

    fn set_clock(&self) {
        let longest = if self.dice.chance(300) { 7_200_000 } else { 20_000 };
        let step = self.dice.below(2 * longest) as i64 - longest as i64;
        if let Some(running) = self.dice.pick(&self.running) {
            running.skew.store(step, Ordering::SeqCst);
            self.stage.note(&format!("clock wrong by {step} ms"));
        }
    }
}

/// Settings of all kinds.
fn config(dice: &Dice) -> Config {
    let few = |many: usize| if dice.chance(300) { 1 + dice.below(3) as usize } else { many };
    let defaults = Config::default();
    Config {
        sandbox_workers: few(defaults.sandbox_workers),
        claim_workers: few(defaults.claim_workers),
        pool_workers: few(defaults.pool_workers),
        pool_batch: few(defaults.pool_batch),
        replenish_delay: if dice.chance(200) { dice.ms(0..5000) } else { Duration::ZERO },
        refill_rate: if dice.chance(200) { 1.0 + dice.below(5) as f64 } else { 0.0 },
        readiness_grace: dice.ms(45_000..300_000),
        write_behind: if dice.chance(300) { dice.ms(1..1000) } else { Duration::ZERO },
        progress_delay: if dice.chance(300) { Duration::ZERO } else { defaults.progress_delay },
        ..defaults
    }
}

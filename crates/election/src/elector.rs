//! Takes the Lease, keeps it, gives it back.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use kube::api::{Api, PostParams};

use crate::{Error, Term, clock, record};

/// Part of a pause that is added at random at most, so that replicas do not ask in step.
const JITTER: f64 = 1.2;
/// Longest time that giving the Lease back may take.
const GIVE_BACK_LIMIT: Duration = Duration::from_secs(3);

/// How long things last. The defaults are those of Kubernetes' own components.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// How long others wait for a leader that does not renew; whole seconds.
    pub lease: Duration,
    /// How long a leader leads without having renewed.
    pub renew: Duration,
    /// Pause between two tries.
    pub retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            lease: Duration::from_secs(15),
            renew: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

/// Which Lease, and for whom.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Name of this process in the Lease; no other process may have the same.
    pub identity: String,
    /// How long things last.
    pub timing: Timing,
}

/// The Lease is not ours any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lost {
    /// Another process has it.
    Taken(String),
    /// It could not be renewed in time.
    NotRenewed,
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Lost::Taken(holder) => write!(f, "{holder} holds the lease"),
            Lost::NotRenewed => f.write_str("the lease could not be renewed in time"),
        }
    }
}

/// One candidate.
#[derive(Debug)]
pub struct Elector {
    leases: Api<Lease>,
    settings: Settings,
    term: Term,
    /// The Lease as it was last seen, and when it was first seen so.
    seen: Option<(Lease, Duration)>,
    /// `true` if the Lease must be read before it is written: a write failed, or its response never came.
    doubted: bool,
}

/// How a try ended.
enum Try {
    Ours,
    /// Held by another process, for at least so long.
    Theirs(String, Duration),
}

impl Elector {
    /// A candidate that does not run yet. The client must not be behind this elector's own [`crate::Guard`].
    ///
    /// # Errors
    /// [`Error::Timing`], [`Error::Empty`].
    pub fn new(client: kube::Client, settings: Settings) -> Result<Self, Error> {
        let Timing { lease, renew, retry } = settings.timing;
        let whole = lease.subsec_nanos() == 0;
        if !whole || lease <= renew || renew <= retry.mul_f64(JITTER) || retry.is_zero() {
            return Err(Error::Timing { lease, renew, retry });
        }
        let fields =
            [("namespace", &settings.namespace), ("name", &settings.name), ("identity", &settings.identity)];
        if let Some((field, _)) = fields.into_iter().find(|(_, value)| value.is_empty()) {
            return Err(Error::Empty { field });
        }
        let leases = Api::namespaced(client, &settings.namespace);
        Ok(Elector { leases, settings, term: Term::default(), seen: None, doubted: true })
    }

    /// Returns the term, which says whether this candidate leads.
    pub fn term(&self) -> Term {
        self.term.clone()
    }

    /// Returns the name of this candidate.
    pub fn identity(&self) -> &str {
        &self.settings.identity
    }

    /// The Lease, as events name it.
    pub fn lease(&self) -> ObjectReference {
        let mut reference = self.seen.as_ref().map(|(lease, _)| lease.object_ref(&())).unwrap_or_default();
        reference.resource_version = None;
        reference
    }

    /// Resolves when this candidate leads.
    pub async fn acquire(&mut self) {
        loop {
            let retry = self.settings.timing.retry;
            let pause = retry.mul_f64(1.0 + JITTER * rand::random::<f64>());
            let pause = match tokio::time::timeout(self.settings.timing.renew, self.attempt()).await {
                Ok(Ok(Try::Ours)) => return,
                // The moment at which their time is up is worth a try of its own.
                Ok(Ok(Try::Theirs(_, left))) => pause.min(left.max(Duration::from_millis(1))),
                Ok(Err(error)) => {
                    tracing::warn!(%error, "the lease could not be read or taken");
                    pause
                }
                Err(_) => Duration::ZERO,
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Renews the Lease for as long as it is ours; resolves when it is not.
    pub async fn hold(&mut self) -> Lost {
        loop {
            tokio::time::sleep(self.settings.timing.retry.min(self.term.remaining())).await;
            let left = self.term.remaining();
            if left.is_zero() {
                return Lost::NotRenewed;
            }
            match tokio::time::timeout(left, self.attempt()).await {
                Ok(Ok(Try::Theirs(holder, _))) => {
                    self.term.end();
                    return Lost::Taken(holder);
                }
                Ok(Err(error)) => tracing::warn!(%error, "the lease could not be renewed, trying again"),
                Ok(Ok(Try::Ours)) | Err(_) => {}
            }
        }
    }

    /// Ends the term and gives the Lease back, so that another candidate need not wait for its end. Nothing happens when it
    /// is not ours; when the server does not answer, the Lease ends by itself.
    pub async fn release(mut self) {
        if !self.term.leads() {
            return;
        }
        self.term.end();
        let give_back = async {
            // One more try after a read, for a renewal whose answer was lost.
            for _ in 0..2 {
                let Some((lease, _)) = &self.seen else { return };
                if record::holder(lease) != Some(&self.settings.identity) {
                    return;
                }
                let free = record::given_back(lease, Timestamp::now());
                let name = &self.settings.name;
                match self.leases.replace(name, &PostParams::default(), &free).await {
                    Ok(_) => return,
                    Err(error) => tracing::debug!(%error, "the lease could not be given back"),
                }
                if self.look().await.is_err() {
                    return;
                }
            }
        };
        if tokio::time::timeout(GIVE_BACK_LIMIT, give_back).await.is_err() {
            tracing::warn!("the lease was not given back in time; it ends by itself");
        }
    }

    /// One try to take or renew the Lease.
    async fn attempt(&mut self) -> Result<Try, kube::Error> {
        // A holder knows what the Lease says, and needs one request; if it is wrong, the server refuses.
        if self.doubted || !self.term.leads() {
            self.look().await?;
        }
        if let Some((lease, since)) = &self.seen
            && let Some(holder) = record::holder(lease)
            && holder != self.settings.identity
        {
            let left = (*since + record::validity(lease)).saturating_sub(clock::now());
            if !left.is_zero() {
                return Ok(Try::Theirs(holder.to_owned(), left));
            }
        }
        let began = clock::now();
        self.doubted = true;
        let lease = self.write().await?;
        self.doubted = false;
        self.seen = Some((lease, clock::now()));
        self.term.lasts_until(began + self.settings.timing.renew);
        Ok(Try::Ours)
    }

    async fn write(&self) -> Result<Lease, kube::Error> {
        let Settings { name, identity, timing, .. } = &self.settings;
        let known = self.seen.as_ref().map(|(lease, _)| lease);
        let wanted = record::held(known, name, identity, timing.lease, Timestamp::now());
        match known {
            None => self.leases.create(&PostParams::default(), &wanted).await,
            Some(_) => self.leases.replace(name, &PostParams::default(), &wanted).await,
        }
    }

    /// Reads the Lease. Its time counts from when its record was first seen as it is, by this machine's clock.
    async fn look(&mut self) -> Result<(), kube::Error> {
        let lease = self.leases.get_opt(&self.settings.name).await?;
        let since = match (&self.seen, &lease) {
            (Some((known, since)), Some(lease)) if known.spec == lease.spec => *since,
            _ => clock::now(),
        };
        self.seen = lease.map(|lease| (lease, since));
        Ok(())
    }
}

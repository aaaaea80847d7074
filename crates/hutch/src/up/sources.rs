//! Sources of the values of credentials. Pods that need the same value follow it together.

mod token;

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, ensure};
use futures::FutureExt;
use hutch_egress::Secret;
use hutch_node::Holder;
use hutch_policy::ProviderSource;
use k8s_openapi::api::core::v1::Secret as SecretObject;
use kube::{Api, Client};
use tokio::sync::watch;

use super::lock;
use super::vault::{Secrets, Vault, send_field};
use crate::credentials::{self, checked, of_secret};

/// Interval of checks for a changed file or Secret.
const LOOK: Duration = Duration::from_millis(500);

/// Value of a credential, or why it is missing; `None` as long as that is not known.
pub(super) type Value = Option<Result<Found, String>>;

/// Value of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) secret: Secret,
    /// Time from which on it is not used, in seconds since 1970.
    pub(super) ends: Option<i64>,
}

/// Place of one value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Place {
    File(String),
    Env(String),
    Secret { namespace: String, name: String, key: String },
    Token(token::Request),
    Vault { secret: VaultSecret, field: String },
}

/// Secret of Vault for a sandbox: one that Vault issues is not shared.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct VaultSecret {
    path: String,
    parameters: BTreeMap<String, String>,
    sandbox: String,
}

/// Everything from which values come.
pub(super) struct Sources {
    client: Client,
    allowed: Allowed,
    vault: Option<Arc<Vault>>,
    values: Followed<Place, Value>,
    secrets: Followed<VaultSecret, Secrets>,
    /// Never sends a value.
    nothing: watch::Sender<Value>,
}

/// Senders by the places that are followed.
type Followed<P, V> = Arc<Mutex<HashMap<P, Arc<watch::Sender<V>>>>>;

/// Files and variables that the administrator of the machine has opened.
#[derive(Debug, Default)]
pub(super) struct Allowed {
    folder: Option<PathBuf>,
    variables: HashMap<String, Secret>,
}

impl Allowed {
    /// Reads the variables, and checks the folder.
    pub(super) fn new(folder: Option<&Path>, variables: &[String]) -> anyhow::Result<Allowed> {
        let folder = folder.map(checked_folder).transpose().context("--credentials-dir")?;
        let read = |name: &String| {
            let value = std::env::var(name).with_context(|| format!("--credential-env {name}"))?;
            let secret = checked(&value).map_err(|why| anyhow::anyhow!("--credential-env {name}: {why}"))?;
            Ok((name.clone(), secret))
        };
        let variables = variables.iter().map(read).collect::<anyhow::Result<_>>()?;
        Ok(Allowed { folder, variables })
    }
}

/// Refuses a folder in which other users could put a value.
fn checked_folder(folder: &Path) -> anyhow::Result<PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let found = folder.metadata().with_context(|| folder.display().to_string())?;
    ensure!(found.is_dir(), "{} is not a folder", folder.display());
    let own = rustix::process::geteuid().as_raw();
    ensure!([0, own].contains(&found.uid()), "{} belongs to user {}", folder.display(), found.uid());
    ensure!(found.mode() & 0o022 == 0, "{}: others than its owner can write in it", folder.display());
    Ok(std::path::absolute(folder)?)
}

impl Place {
    /// Returns the place of a value for a Pod.
    pub(super) fn new(source: ProviderSource<'_>, holder: &Holder) -> Place {
        let namespace = &holder.pod.namespace;
        match source {
            ProviderSource::File(name) => Place::File(name.to_owned()),
            ProviderSource::Env(name) => Place::Env(name.to_owned()),
            ProviderSource::Secret(secret) => Place::Secret {
                namespace: secret.namespace.as_ref().unwrap_or(namespace).clone(),
                name: secret.name.clone(),
                key: secret.key.clone(),
            },
            ProviderSource::Token(token) => Place::Token(token::Request::new(token, holder)),
            ProviderSource::Vault(vault) => {
                let secret = VaultSecret {
                    path: vault.path(namespace),
                    parameters: vault.parameters.clone(),
                    sandbox: holder.sandbox.clone(),
                };
                Place::Vault { secret, field: vault.field.clone() }
            }
        }
    }
}

impl Sources {
    pub(super) fn new(client: Client, allowed: Allowed, vault: Option<Vault>) -> Sources {
        let vault = vault.map(Arc::new);
        Sources {
            client,
            allowed,
            vault,
            values: Arc::default(),
            secrets: Arc::default(),
            nothing: watch::channel(None).0,
        }
    }

    /// Returns a receiver of no value, which waits as others do.
    pub(super) fn nothing(&self) -> watch::Receiver<Value> {
        self.nothing.subscribe()
    }

    /// Follows the value at a place, until the last receiver is dropped.
    pub(super) fn follow(self: &Arc<Self>, place: Place) -> watch::Receiver<Value> {
        let (this, at) = (self.clone(), place.clone());
        follow(&self.values, place, async move |sender| this.send(&at, &sender).await)
    }

    /// Sends each value of a place.
    async fn send(&self, place: &Place, sender: &watch::Sender<Value>) {
        match place {
            Place::File(name) => self.send_file(name, sender).await,
            Place::Env(name) => {
                let refused =
                    || format!("variable {name}: `hutch up --credential-env {name}` does not name it");
                let secret = self.allowed.variables.get(name).cloned().ok_or_else(refused);
                put(sender, secret);
            }
            Place::Secret { namespace, name, key } => self.send_secret(namespace, name, key, sender).await,
            Place::Token(request) => request.send(&self.client, sender).await,
            Place::Vault { secret, field } => self.send_from_vault(secret, field, sender).await,
        }
    }

    async fn send_from_vault(&self, secret: &VaultSecret, field: &str, sender: &watch::Sender<Value>) {
        let Some(vault) = self.vault.clone() else {
            return put(sender, Err("there is no `hutch up --vault`".to_owned()));
        };
        let VaultSecret { path, parameters, .. } = secret.clone();
        // Fields of one secret belong together, such as a user and a password.
        let secrets = follow(&self.secrets, secret.clone(), async move |sender| {
            vault.send(&path, &parameters, &sender).await;
        });
        send_field(secrets, (&secret.path, field), sender).await;
    }

    async fn send_file(&self, name: &str, sender: &watch::Sender<Value>) {
        let Some(folder) = &self.allowed.folder else {
            let why = format!("file {name}: there is no `hutch up --credentials-dir`");
            return put(sender, Err(why));
        };
        let path = folder.join(name);
        let mut last = None;
        loop {
            let (at, before) = (path.clone(), last);
            let of = folder.clone();
            let looked = tokio::task::spawn_blocking(move || match checked_folder(&of) {
                Ok(_) => look(&at, before),
                Err(error) => (None, Some(Err(format!("{error:#}")))),
            });
            if let Ok((mark, Some(value))) = looked.await {
                last = mark;
                put(sender, value.map_err(|why| format!("file {name}: {why}")));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Reads a Secret again and again: the node may read single ones, and neither list nor watch them.
    async fn send_secret(&self, namespace: &str, name: &str, key: &str, sender: &watch::Sender<Value>) {
        let api: Api<SecretObject> = Api::namespaced(self.client.clone(), namespace);
        loop {
            // When the server does not answer, what was true last still counts.
            if let Ok(found) = api.get_opt(name).await {
                let value = of_secret(found.as_ref(), key);
                put(sender, value.map_err(|why| format!("Secret {namespace}/{name}: {why}")));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Follows what `send` sends about a place, together with others who do, until the last receiver is dropped.
fn follow<P, V, F>(
    followed: &Followed<P, V>,
    place: P,
    send: impl FnOnce(Arc<watch::Sender<V>>) -> F,
) -> watch::Receiver<V>
where
    P: Clone + Eq + Hash + Send + 'static,
    V: Default + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let mut all = lock(followed);
    if let Some(sender) = all.get(&place) {
        return sender.subscribe();
    }
    let (sender, receiver) = watch::channel(V::default());
    let sender = Arc::new(sender);
    all.insert(place.clone(), sender.clone());
    let (followed, sending) = (followed.clone(), send(sender.clone()));
    tokio::spawn(async move {
        // The last value stays after the end.
        let mut sending = pin!(sending.then(|()| std::future::pending::<()>()));
        loop {
            tokio::select! {
                () = sender.closed() => {
                    let mut all = lock(&followed);
                    // A receiver may have come meanwhile.
                    if sender.receiver_count() == 0 {
                        all.remove(&place);
                        return;
                    }
                }
                () = &mut sending => {}
            }
        }
    });
    receiver
}

/// Sends a value that has no end of its own.
fn put(sender: &watch::Sender<Value>, value: Result<Secret, String>) {
    set(sender, value.map(|secret| Found { secret, ends: None }));
}

/// Sends a value, if it is another one.
pub(super) fn set(sender: &watch::Sender<Value>, value: Result<Found, String>) {
    sender.send_if_modified(|known| {
        let new = Some(value);
        let differs = *known != new;
        if differs {
            *known = new;
        }
        differs
    });
}

/// Marks by which a change of a file is recognized: time of its last change, size, device and number.
type Mark = ((i64, i64), u64, u64, u64);

/// Reads a file, if it has changed. A file that could not be read has no mark and is read again.
fn look(path: &Path, before: Option<Mark>) -> (Option<Mark>, Option<Result<Secret, String>>) {
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    // Opening something else than a file could wait forever.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let opened = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path);
    let found = opened.and_then(|file| Ok((file.metadata()?, file)));
    let why = match found {
        Ok((facts, file)) if facts.is_file() => {
            let mark = ((facts.ctime(), facts.ctime_nsec()), facts.len(), facts.dev(), facts.ino());
            if before == Some(mark) {
                return (before, None);
            }
            let read = credentials::text(file).map_err(|error| format!("{error:#}"));
            match read.and_then(|text| checked(&text)) {
                Ok(secret) => return (Some(mark), Some(Ok(secret))),
                Err(why) => why,
            }
        }
        Ok(_) => "it is not a file".to_owned(),
        Err(error) => error.to_string(),
    };
    (None, Some(Err(why)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_read_again_when_it_has_changed_or_could_not_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert!(matches!(look(&path, None), (None, Some(Err(_)))));
        std::fs::write(&path, "short").unwrap();
        assert!(matches!(look(&path, None), (None, Some(Err(_)))));
        std::fs::write(&path, "value-of-the-file").unwrap();
        let (mark, first) = look(&path, None);
        assert_eq!(first, Some(Ok(Secret::new("value-of-the-file".into()))));
        assert_eq!(look(&path, mark).1, None);
        // The same length, and the same time of its content.
        let modified = path.metadata().unwrap().modified().unwrap();
        std::fs::write(&path, "other-of-the-file").unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        assert_eq!(look(&path, mark).1, Some(Ok(Secret::new("other-of-the-file".into()))));
    }

    #[test]
    fn pipe_is_not_waited_for_and_a_folder_that_others_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        assert_eq!(look(&pipe, None), (None, Some(Err("it is not a file".into()))));
        checked_folder(folder.path()).unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o775)).unwrap();
        assert!(checked_folder(folder.path()).unwrap_err().to_string().contains("can write in it"));
        if rustix::process::geteuid().is_root() {
            std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
            std::os::unix::fs::chown(folder.path(), Some(1000), None).unwrap();
            assert!(checked_folder(folder.path()).unwrap_err().to_string().contains("belongs to"));
        }
    }
}

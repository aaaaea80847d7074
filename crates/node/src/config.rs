//! How a node is set up.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::BoxFuture;
use hutch_attach::{Ground, PeerRefusal};
use hutch_image::Unpacker;
use hutch_jail::NetworkPlan;
use hutch_kubelet::{Duplex, PodId, StreamError};
use hutch_policy::{Credential, Facts, HostName, Level, Peer, Provider};
use hutch_registry::ImageName;
use hutch_screen::Sighting;
use k8s_openapi::api::core::v1::Secret;
use tokio::sync::oneshot;

/// Memory of a container that names no limit, in bytes. A container whose request is larger gets its request.
pub const DEFAULT_MEMORY_BYTES: u64 = 1 << 30;
/// Processes and threads of a container: no field of a Pod says it, and without a bound a fork bomb takes the machine.
pub const DEFAULT_PIDS: u64 = 1024;

/// How a node is set up.
#[derive(Clone)]
pub struct Config {
    /// Name of the Node object.
    pub node_name: String,
    /// Folder of everything that the node keeps; made with mode 0700.
    pub data_dir: PathBuf,
    /// Range of Pod addresses, such as `10.89.0.0/16`: IPv4, /16 to /28, never loopback.
    pub pod_cidr: String,
    /// File with the memory of the machine: `/proc/meminfo`, or another one in its form.
    pub meminfo: PathBuf,
    /// The program that makes jails.
    pub warden_program: PathBuf,
    /// The sandbox runtime, a static program, for images that want it.
    pub sandboxd_program: PathBuf,
    /// Handlers by the name of the runtime class; see [`Handler::defaults`].
    pub runtime_classes: BTreeMap<String, Handler>,
    /// Limits of containers that name none.
    pub defaults: DefaultLimits,
    /// Services of this process that answer for Pods with their images.
    pub services: BTreeMap<ServiceKind, Arc<dyn EmbeddedService>>,
    /// `true` if the built-in image stands for the published runtime images.
    pub substitute_images: bool,
    /// Folder of the OCI layouts that Pods may name; without it they may name none.
    pub image_dir: Option<PathBuf>,
    /// Use of the disk, in percent, up to which snapshots are taken; suspends always are.
    pub snapshot_disk_high: u8,
    /// Folders of this machine that Pods may mount.
    pub host_paths: Vec<HostPath>,
    /// Files and folders besides the data folder that none of them may hold.
    pub private_paths: Vec<PathBuf>,
    /// Unpacks layers of images in processes of their own.
    pub unpacker: Option<Arc<dyn Unpacker>>,
    /// Folder of the images that the administrator has pulled, an OCI layout. It need not be there.
    pub pulled: PathBuf,
    /// Pulls images for Pods. Without it, none is pulled.
    pub puller: Option<Arc<dyn ImagePuller>>,
    /// The proxy through which Pods reach the network. Without it, they reach nothing.
    pub egress: Option<Arc<dyn Egress>>,
    /// Receives what happens to Pods, for an audit log.
    pub journal: Option<Arc<dyn Journal>>,
}

/// Folder of this machine that Pods may mount, with everything below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPath {
    /// The folder.
    pub folder: PathBuf,
    /// `true` if Pods may write in it.
    pub writable: bool,
}

/// Pulls images for Pods.
pub trait ImagePuller: Send + Sync + 'static {
    /// Folder of the images that it has pulled, an OCI layout.
    fn folder(&self) -> &Path;
    /// Checks that an image may be pulled. The error says what allows it.
    ///
    /// # Errors
    /// When no prefix allows it.
    fn check(&self, name: &ImageName) -> Result<(), String>;
    /// Returns the name by digest of the image that the registry has given for that name and these credentials.
    fn has_pulled(&self, name: &ImageName, secrets: &[PullSecret]) -> Option<ImageName>;
    /// Returns `true` if an image needs a signature, so that only what this puller has checked is used.
    fn needs_signature(&self, name: &ImageName) -> bool;
    /// Pulls an image. Returns its name by digest, by which it is in the folder, and the bytes of its layers as the registry
    /// has them.
    fn pull(
        &self,
        name: &ImageName,
        secrets: Vec<PullSecret>,
    ) -> BoxFuture<'_, Result<(ImageName, u64), PullFailure>>;
}

/// Why an image was not pulled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullFailure {
    /// It has no valid signature, and needs one.
    Unsigned(String),
    /// Any other reason.
    Failed(String),
}

/// Credentials of a Secret, in the form of a `config.json` of Docker.
#[derive(Clone)]
pub struct PullSecret {
    /// Name of the Secret.
    pub name: String,
    /// Content.
    pub content: Vec<u8>,
}

impl PullSecret {
    /// Reads a Secret of type `kubernetes.io/dockerconfigjson` or `kubernetes.io/dockercfg`.
    pub(crate) fn of(name: &str, secret: &Secret) -> Option<PullSecret> {
        let data = |key: &str| Some(secret.data.as_ref()?.get(key)?.0.clone());
        let content = match secret.type_.as_deref() {
            Some("kubernetes.io/dockerconfigjson") => data(".dockerconfigjson")?,
            Some("kubernetes.io/dockercfg") => {
                [&b"{\"auths\":"[..], &data(".dockercfg")?, &b"}"[..]].concat()
            }
            _ => return None,
        };
        Some(PullSecret { name: name.into(), content })
    }
}

/// Receives what happens to Pods.
pub trait Journal: Send + Sync + 'static {
    /// A Pod begins. `sandbox` is name and uid of its Sandbox, if it has one.
    fn begins(&self, pod: &PodId, sandbox: Option<(&str, &str)>);
    /// Records a change of these containers before it is made. The change waits for the future, and is not made after an error,
    /// which says why. `None`: nothing waits for records.
    fn before(
        &self,
        pod: &str,
        containers: &[String],
        what: ContainerChange<'_>,
    ) -> Option<BoxFuture<'static, Result<(), String>>>;
    /// Something happened to a container of the Pod with this uid.
    fn happened(&self, pod: &str, container: &str, what: ContainerChange<'_>);
    /// Something was found in the logs of the Pod with this uid.
    fn found(&self, pod: &str, sighting: &Sighting<'_>);
    /// A Pod has gone.
    fn ends(&self, pod: &str);
}

/// Change of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerChange<'a> {
    /// It has started.
    Started {
        /// Name of the snapshot with which it began.
        snapshot: Option<&'a str>,
    },
    /// It has ended.
    Ended {
        /// Exit code.
        code: i32,
        /// The kernel killed it for want of memory.
        out_of_memory: bool,
    },
    /// Its processes are stopped.
    Frozen,
    /// The memory of its stopped processes was written to swap.
    PagedOut,
    /// Its processes run again.
    Thawed,
}

/// The proxy through which Pods reach the network. A Pod is named by its uid.
pub trait Egress: Send + Sync + 'static {
    /// Returns the plan of the network namespace of a Pod.
    fn plan(&self, address: IpAddr) -> NetworkPlan;
    /// Serves the listeners of a Pod's plan. It reaches nothing before levels are set. Names have the addresses that they had in
    /// earlier Pods of its sandbox, which has a name of its own.
    fn serve(&self, pod: &str, sandbox: &str, listeners: Vec<OwnedFd>);
    /// Returns the certificates that programs in a Pod must trust. Its sandbox, by a name of its own, has one authority as
    /// long as it is not forgotten and the authority does not end soon.
    fn trust(&self, pod: &str, sandbox: &str) -> BoxFuture<'_, Result<Bundle, String>>;
    /// Forgets the authority and the names of a sandbox that is gone.
    fn forget(&self, sandbox: &str);
    /// Does so for all sandboxes that had an authority before this program started and are not among these.
    fn forget_others(&self, sandboxes: &HashSet<String>);
    /// Sets the facts about a Pod that is served, for conditions of rules.
    fn set_facts(&self, pod: &str, facts: Facts);
    /// Sets the levels of a Pod that is served. Connections that they do not allow end.
    fn set_levels(&self, pod: &str, levels: Vec<Arc<Level>>);
    /// Sets the Services through which a Pod of this namespace reaches other Pods. Connections through others end.
    fn set_peers(&self, pod: &str, namespace: &str, peers: Vec<Peer>);
    /// Returns the placeholders of credentials, in their order. A sandbox always gets the same ones.
    fn placeholders(&self, sandbox: &str, offers: &[Offer]) -> BoxFuture<'_, Result<Vec<String>, String>>;
    /// Sets the credentials of a Pod that is served, in place of earlier ones.
    fn set_credentials(&self, holder: Holder, offers: Vec<Offer>);
    /// Returns the names that have an address in a Pod, in the order of these.
    fn names(&self, pod: &str) -> BoxFuture<'_, Vec<HostName>>;
    /// Gives the names the same addresses in a Pod that is served and in which no process runs yet: memory that is restored
    /// in it may hold such addresses.
    fn set_names(&self, pod: &str, names: Vec<HostName>);
    /// Forgets a Pod.
    fn end(&self, pod: &str);
    /// Resolves with the next news.
    fn news(&self) -> BoxFuture<'_, EgressNews>;
}

/// News of the proxy. Parts of them may be made up.
pub enum EgressNews {
    /// A connection was refused.
    Refused {
        /// The Pod that connected.
        pod: String,
        /// Text of the event.
        line: String,
        /// `true` if a credential stood where its value may not.
        of_credential: bool,
    },
    /// A credential of a Pod has no value.
    NotIssued {
        /// The Pod.
        pod: String,
        /// Text of the event.
        line: String,
    },
    /// A Pod connects to another one.
    Dial(PeerRequest),
}

/// Credential that the policies of a Pod offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Name of the policy.
    pub policy: String,
    /// Credential.
    pub credential: Credential,
    /// Its provider; `None` if it is missing or invalid.
    pub provider: Option<Arc<Provider>>,
}

/// Pod that has credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The Pod.
    pub pod: PodId,
    /// Name of its sandbox, as in [`Egress::trust`].
    pub sandbox: String,
    /// Name of the sandbox whose placeholders it has: its own, or that of the Sandbox from which a fork inherits them.
    pub placeholders: String,
    /// Name of the sandbox whose placeholders are refused: they are in its memory, and it has not inherited them.
    pub refused: Option<String>,
    /// Name of its ServiceAccount.
    pub account: String,
    /// `false` for a Sandbox that waits in a warm pool. It gets no value before a claim has it.
    pub claimed: bool,
}

/// Request of a Pod for a connection to another one.
pub struct PeerRequest {
    /// The Pod that connects.
    pub pod: String,
    /// Namespace and name of the Service to which it connects.
    pub service: (String, String),
    /// Port of the Service.
    pub port: NonZeroU16,
    /// Without it, only the decision is requested.
    pub connects: bool,
    /// Receives the answer.
    pub answer: oneshot::Sender<Result<PeerAnswer, PeerRefusal>>,
}

/// Answer to a request for a connection that is allowed.
#[derive(Debug)]
pub struct PeerAnswer {
    /// Policy that allows it.
    pub by: Ground,
    /// The connection, and a socket that is to be closed with it. Without, only the decision was requested.
    pub sockets: Option<[OwnedFd; 2]>,
}

/// Certificates that programs in a Pod trust.
#[derive(Debug, Clone)]
pub struct Bundle {
    /// Public authorities, PEM: the same for all Pods.
    pub public: Arc<[u8]>,
    /// Authority of the sandbox, PEM.
    pub own: String,
}

/// Isolation of the containers of a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handler {
    /// The native jail.
    Native,
    /// gVisor's `runsc`.
    Gvisor,
}

impl Handler {
    /// `hutch` is the native jail and `gvisor` is gVisor.
    pub fn defaults() -> BTreeMap<String, Handler> {
        BTreeMap::from([("hutch".into(), Handler::Native), ("gvisor".into(), Handler::Gvisor)])
    }

    /// Reads a handler's name: `hutch` or `gvisor`.
    pub fn parse(name: &str) -> Option<Handler> {
        match name {
            "hutch" => Some(Handler::Native),
            "gvisor" => Some(Handler::Gvisor),
            _ => None,
        }
    }

    /// The name that [`Handler::parse`] reads.
    pub fn name(self) -> &'static str {
        match self {
            Handler::Native => "hutch",
            Handler::Gvisor => "gvisor",
        }
    }
}

/// Limits of containers that name none; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DefaultLimits {
    /// CPU time per second, in thousandths of a CPU.
    pub cpu_millis: Option<u64>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
}

impl Default for DefaultLimits {
    fn default() -> Self {
        DefaultLimits { cpu_millis: None, memory_bytes: Some(DEFAULT_MEMORY_BYTES), pids: Some(DEFAULT_PIDS) }
    }
}

/// A service of Hutch that Pods can stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServiceKind {
    /// The controllers of the four kinds.
    Controller,
    /// The router to sandboxes.
    Router,
}

impl ServiceKind {
    /// All of them.
    pub const ALL: [ServiceKind; 2] = [ServiceKind::Controller, ServiceKind::Router];

    /// Name of the service.
    pub fn name(self) -> &'static str {
        match self {
            ServiceKind::Controller => "controller",
            ServiceKind::Router => "router",
        }
    }
}

/// A service of this process, for which a Pod without a process stands.
pub trait EmbeddedService: Send + Sync + 'static {
    /// Returns true if it serves now.
    fn ready(&self) -> bool;
    /// Connects to what would be a port of its container.
    fn connect(&self, port: u16) -> BoxFuture<'_, Result<Box<dyn Duplex>, StreamError>>;
}

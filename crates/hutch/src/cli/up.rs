//! Flags of `hutch up`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use hutch_node::HostPath;

use crate::callout::Destination;
use crate::quantity;
use crate::upstream_proxy::ProxyUrl;
use crate::vault::Address;

/// Mode of the audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
pub(crate) enum AuditMode {
    /// Nothing is recorded.
    Off,
    /// Records follow what happens.
    On,
    /// Nothing that a caller requests happens before its record is on the disk.
    Strict,
}

/// `hutch up`.
#[derive(Args, Clone)]
pub(crate) struct UpArguments {
    /// Folder for all persistent state.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/hutch")]
    pub(crate) data_dir: PathBuf,
    /// Address of the Kubernetes API (TLS); port 0 picks a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6443", value_parser = quantity::socket_address)]
    pub(crate) api_listen: SocketAddr,
    /// Address of the sandbox router (plain HTTP, bearer token); without it, only port-forward reaches the
    /// router.
    #[arg(long, value_name = "ADDR", value_parser = quantity::socket_address)]
    pub(crate) router_listen: Option<SocketAddr>,
    /// Let every client of the router's address use every sandbox.
    #[arg(long, requires = "router_listen")]
    pub(crate) router_allow_unauthenticated: bool,
    /// File for the kubeconfig with the admin credential; default DIR/kubeconfig of the data folder.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Handler for Pods of a RuntimeClass: hutch, gvisor. Repeatable. `gvisor=hutch` maps the class to the native jail.
    #[arg(long, value_name = "NAME=HANDLER", value_parser = quantity::runtime_class)]
    pub(crate) runtime_class: Vec<(String, String)>,
    /// Addresses of Pods: synthetic, seen only inside sandboxes.
    #[arg(long, value_name = "CIDR", default_value = "10.89.0.0/16", value_parser = quantity::cidr)]
    pub(crate) pod_cidr: String,
    /// Do not replace the published images with built-in ones. Pods with these names start if the images are pulled.
    #[arg(long)]
    pub(crate) no_builtin_runtime_images: bool,
    /// Folder of the OCI layouts that Pods may name as `oci:PATH`; without it they may name none.
    #[arg(long, value_name = "DIR")]
    pub(crate) image_dir: Option<PathBuf>,
    /// Folder of this machine that Pods may mount as hostPath, with what is below it on the same mount: read-only, or also to
    /// write with `:rw`. Repeatable. Without it, none.
    #[arg(long, value_name = "DIR[:rw]", value_parser = quantity::host_path)]
    pub(crate) host_path: Vec<HostPath>,
    /// Use of the disk of the data folder, in percent, up to which snapshots are taken. Suspends with memory always are.
    #[arg(long, value_name = "PERCENT", default_value_t = 80, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) snapshot_disk_high: u8,
    /// Registries, and paths of them, from which images of Pods may be pulled, separated by commas: docker.io,ghcr.io/org, or
    /// `*` for all. Without it, none is pulled.
    #[arg(long, value_name = "PREFIXES")]
    pub(crate) pull_from: Option<String>,
    /// File with allowed prefixes, mirrors, authorities, registries without TLS and files with credentials for pulls.
    #[arg(long, value_name = "FILE")]
    pub(crate) image_config: Option<PathBuf>,
    /// Use of the disk, in percent, from which images of Pods that nothing uses are removed. 100 means never.
    #[arg(long, value_name = "PERCENT", default_value_t = 85, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) image_gc_high_threshold: u8,
    /// Use of the disk, in percent, down to which they are removed.
    #[arg(long, value_name = "PERCENT", default_value_t = 80, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) image_gc_low_threshold: u8,
    /// Time that an image must be unused before it is removed.
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = quantity::timeout)]
    pub(crate) minimum_image_ttl_duration: Duration,
    /// Connect sandboxes through this HTTP proxy: http://[USER:PASSWORD@]HOST:PORT. The default is the variable
    /// HUTCH_UPSTREAM_PROXY, which other users of the machine cannot see.
    #[arg(long, value_name = "URL")]
    pub(crate) upstream_proxy: Option<ProxyUrl>,
    /// The audit log, in the folder `audit` of the data folder: off, on, or strict, where nothing that a caller requests
    /// happens before its record is on the disk.
    #[arg(long, value_enum, value_name = "MODE", default_value = "on")]
    pub(crate) audit: AuditMode,
    /// Folder of the files that a CredentialProvider may name with `file`; without it, none. Only its owner may write in it.
    #[arg(long, value_name = "DIR")]
    pub(crate) credentials_dir: Option<PathBuf>,
    /// Variable of this program that a CredentialProvider may name with `env`. Repeatable.
    #[arg(long, value_name = "NAME")]
    pub(crate) credential_env: Vec<String>,
    /// Vault from which a CredentialProvider may take values with `vault`: https://HOST[:PORT].
    #[arg(long, value_name = "URL", requires = "vault_token_file")]
    pub(crate) vault: Option<Address>,
    /// File with the token for Vault; it is read again for each request.
    #[arg(long, value_name = "FILE", requires = "vault")]
    pub(crate) vault_token_file: Option<PathBuf>,
    /// File with the authorities that may sign the certificate of Vault; the default is those of the machine.
    #[arg(long, value_name = "FILE", requires = "vault")]
    pub(crate) vault_ca_file: Option<PathBuf>,
    /// Host and port to which the API server may connect for webhooks of admission with a url. Repeatable. Without it, none:
    /// webhooks are then reached as Services.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) webhook_host: Vec<Destination>,
    /// Address at which /metrics is served, for Prometheus: the counters of the proxy of all sandboxes. Port 0 picks a free
    /// one.
    #[arg(long, value_name = "ADDR", value_parser = quantity::socket_address)]
    pub(crate) metrics_listen: Option<SocketAddr>,
}

impl UpArguments {
    /// Everything below one folder, on a free port of loopback.
    pub(crate) fn in_folder(folder: &Path) -> UpArguments {
        UpArguments {
            data_dir: folder.join("data"),
            api_listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            router_listen: None,
            router_allow_unauthenticated: false,
            kubeconfig: None,
            runtime_class: Vec::new(),
            pod_cidr: "10.89.0.0/16".to_owned(),
            no_builtin_runtime_images: false,
            image_dir: None,
            snapshot_disk_high: 80,
            host_path: Vec::new(),
            pull_from: None,
            image_config: None,
            image_gc_high_threshold: 85,
            image_gc_low_threshold: 80,
            minimum_image_ttl_duration: Duration::from_secs(120),
            upstream_proxy: None,
            audit: AuditMode::On,
            credentials_dir: None,
            credential_env: Vec::new(),
            vault: None,
            vault_token_file: None,
            vault_ca_file: None,
            webhook_host: Vec::new(),
            metrics_listen: None,
        }
    }
}

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use anyhow::Context;
use hutch_kubelet::Exit;
use k8s_openapi::api::core::v1::Container as Spec;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Command;
use tokio::sync::watch;

use super::log::Log;
use super::pods::Minder;
use super::process::Process;
use super::volumes::Volumes;

/// Where sandboxd serves the runtime's HTTP contract.
const RUNTIME_PORT: u16 = 8888;

/// Where a container runs, and what runs in one without a command.
pub(super) struct Place<'a> {
    pub(super) address: Ipv4Addr,
    pub(super) folder: &'a Path,
    pub(super) runtime: &'a Path,
    pub(super) minder: &'a Arc<Minder>,
    pub(super) volumes: &'a Volumes,
    /// `runAsUser` of the Pod.
    pub(super) user: Option<u32>,
}

/// A container's main process.
pub(super) struct Container {
    pub(super) name: String,
    pub(super) image: String,
    pub(super) log: Arc<Log>,
    /// Ports that accept connections once it is ready.
    pub(super) ports: Vec<u16>,
    environment: Vec<(OsString, OsString)>,
    folder: PathBuf,
    user: Option<u32>,
    minder: Arc<Minder>,
    group: Pid,
    exit: watch::Receiver<Option<Exit>>,
}

impl Container {
    pub(super) fn start(spec: &Spec, place: &Place<'_>) -> anyhow::Result<Container> {
        let environment = environment(spec, place);
        let mut command = match spec.command.as_deref() {
            Some([program, arguments @ ..]) => {
                let mut command = Command::new(program);
                command.args(arguments).args(spec.args.iter().flatten());
                command
            }
            _ => {
                let mut command = Command::new(place.runtime);
                command.args(["--listen-host", &place.address.to_string()]);
                command
            }
        };
        command.envs(environment.iter().cloned()).process_group(0);
        run_as(&mut command, place.user, place.folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Process::start(&mut command, place.minder)
            .with_context(|| format!("container {}: {:?}", spec.name, command.as_std().get_program()))?;
        let log = Arc::new(Log::default());
        let (stdout, stderr) = (process.child().stdout.take(), process.child().stderr.take());
        let outputs = [
            stdout.map(|output| tokio::spawn(log.clone().take(output))),
            stderr.map(|output| tokio::spawn(log.clone().take(output))),
        ];
        let group = process.group();
        let (tell, exit) = watch::channel(None);
        let written = log.clone();
        tokio::spawn(async move {
            let exit = process.ended().await;
            futures::future::join_all(outputs.into_iter().flatten()).await;
            written.end();
            tell.send_replace(Some(exit));
        });
        Ok(Container {
            name: spec.name.clone(),
            image: spec.image.clone().unwrap_or_default(),
            log,
            ports: ports(spec),
            environment,
            folder: place.folder.to_owned(),
            user: place.user,
            minder: place.minder.clone(),
            group,
            exit,
        })
    }

    /// A further process in it.
    pub(super) fn command(&self, program: &str, arguments: &[String]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).envs(self.environment.iter().cloned());
        run_as(&mut command, self.user, &self.folder);
        command
    }

    pub(super) fn minder(&self) -> &Arc<Minder> {
        &self.minder
    }

    /// How its process ended, if it has.
    pub(super) fn exit(&self) -> Option<Exit> {
        self.exit.borrow().clone()
    }

    pub(super) async fn ended(&self) {
        // Without a sender it has ended too.
        let _ = self.exit.clone().wait_for(Option::is_some).await;
    }

    pub(super) fn signal(&self, signal: Signal) {
        if self.exit().is_none() {
            // It may have ended a moment ago.
            let _ = kill_process_group(self.group, signal);
        }
    }
}

/// Sets the folder and the user. Of the cluster's folder, only root can read anything.
fn run_as(command: &mut Command, user: Option<u32>, folder: &Path) {
    match user {
        Some(user) => command.uid(user).gid(user).current_dir("/"),
        None => command.current_dir(folder),
    };
}

fn environment(spec: &Spec, place: &Place<'_>) -> Vec<(OsString, OsString)> {
    let given = spec.env.iter().flatten();
    let given = given.filter_map(|variable| {
        let value = place.volumes.here(spec, variable.value.clone()?);
        Some((variable.name.clone().into(), value.into()))
    });
    let own = [
        ("POD_IP".into(), place.address.to_string().into()),
        ("SANDBOX_BASE_DIR".into(), place.folder.join("app").into()),
    ];
    given.chain(own).collect()
}

fn ports(spec: &Spec) -> Vec<u16> {
    let probe = spec.readiness_probe.as_ref();
    let http = probe.and_then(|probe| Some(&probe.http_get.as_ref()?.port));
    let probed = http.or_else(|| probe.and_then(|probe| Some(&probe.tcp_socket.as_ref()?.port)));
    let probed = probed.and_then(|port| match port {
        IntOrString::Int(number) => u16::try_from(*number).ok(),
        IntOrString::String(name) => {
            let mut known = spec.ports.iter().flatten();
            let named = known.find(|port| port.name.as_ref() == Some(name));
            named.and_then(|port| u16::try_from(port.container_port).ok())
        }
    });
    probed.or_else(|| spec.command.is_none().then_some(RUNTIME_PORT)).into_iter().collect()
}

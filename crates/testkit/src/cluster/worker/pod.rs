use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use hutch_kubelet::{Exit, PodId, StreamError};
use k8s_openapi::api::core::v1::Pod as Object;
use kube::ResourceExt;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::address::Address;
use super::container::{Container, Place};
use super::pods::Minder;
use super::volumes::Volumes;

/// Pause between two tries to connect to a container that is to be ready.
const PAUSE: Duration = Duration::from_millis(10);

/// A Pod that runs here.
pub(super) struct Pod {
    pub(super) id: PodId,
    pub(super) address: Ipv4Addr,
    containers: Vec<Container>,
    over: watch::Sender<bool>,
    ending: AtomicBool,
    _held: Address,
}

impl Pod {
    pub(super) fn start(
        object: &Object,
        folder: &Path,
        runtime: &Path,
        minder: &Arc<Minder>,
        volumes: &Volumes,
    ) -> anyhow::Result<Pod> {
        let id = PodId {
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
        };
        let folder = folder.join(&id.uid);
        std::fs::create_dir_all(folder.join("app")).with_context(|| folder.display().to_string())?;
        let address = Address::next();
        minder.watch_address(address);
        let held = Address::add(address)?;
        let context = object.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
        let user = context.and_then(|context| u32::try_from(context.run_as_user?).ok());
        let place = Place { address, folder: &folder, runtime, minder, volumes, user };
        let specs = object.spec.iter().flat_map(|spec| &spec.containers);
        let containers = specs.map(|spec| Container::start(spec, &place)).collect::<anyhow::Result<_>>()?;
        Ok(Pod {
            id,
            address,
            containers,
            over: watch::Sender::new(false),
            ending: AtomicBool::new(false),
            _held: held,
        })
    }

    /// The container of that name, else the first.
    pub(super) fn container(&self, name: Option<&str>) -> Result<&Container, StreamError> {
        let found = match name {
            Some(name) => self.containers.iter().find(|container| container.name == name),
            None => self.containers.first(),
        };
        found.ok_or_else(|| {
            StreamError::NotFound(format!("container not found ({:?})", name.unwrap_or_default()))
        })
    }

    /// Waits until every container takes connections; says nothing when the Pod ends before.
    pub(super) async fn ready(&self) -> bool {
        let listening = async {
            for port in self.containers.iter().flat_map(|container| &container.ports) {
                while TcpStream::connect((self.address, *port)).await.is_err() {
                    tokio::time::sleep(PAUSE).await;
                }
            }
        };
        tokio::select! {
            () = listening => true,
            () = self.ended() => false,
        }
    }

    /// Resolves when every main process has ended.
    pub(super) async fn ended(&self) {
        futures::future::join_all(self.containers.iter().map(Container::ended)).await;
    }

    /// Returns true, once, if the caller has to end it.
    pub(super) fn ends(&self) -> bool {
        !self.ending.swap(true, Ordering::Relaxed)
    }

    /// Ends it: asks, and after the grace insists.
    pub(super) async fn end(&self, grace: Duration) {
        self.signal(Signal::TERM);
        if tokio::time::timeout(grace, self.ended()).await.is_err() {
            self.signal(Signal::KILL);
            self.ended().await;
        }
        self.over.send_replace(true);
    }

    fn signal(&self, signal: Signal) {
        for container in &self.containers {
            container.signal(signal);
        }
    }

    /// Resolves when this life of the Pod is over.
    pub(super) fn over(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut over = self.over.subscribe();
        async move {
            // Without a sender it is over too.
            let _ = over.wait_for(|over| *over).await;
        }
    }

    /// `status`, as a kubelet reports it.
    pub(super) fn status(&self, ready: bool, time: &str) -> Value {
        let exits: Vec<Option<Exit>> = self.containers.iter().map(Container::exit).collect();
        let phase = match () {
            () if exits.iter().any(Option::is_none) => "Running",
            () if exits.iter().all(|exit| *exit == Some(Exit::Code(0))) => "Succeeded",
            () => "Failed",
        };
        let truth = |holds: bool| if holds { "True" } else { "False" };
        let condition =
            |kind: &str, holds| json!({"type": kind, "status": truth(holds), "lastTransitionTime": time});
        let containers: Vec<Value> = self.containers.iter().zip(&exits).map(|(container, exit)| {
            let state = match exit {
                None => json!({"running": {"startedAt": time}}),
                Some(Exit::Code(code)) => json!({"terminated": {"exitCode": code}}),
                Some(Exit::Signal(signal)) => json!({"terminated": {"exitCode": 128 + signal, "signal": signal}}),
                Some(Exit::OutOfMemory) => json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}),
                Some(Exit::Failed(_)) => json!({"terminated": {"exitCode": 255}}),
            };
            json!({"name": container.name, "image": container.image, "imageID": "", "restartCount": 0, "ready": ready,
                "started": exit.is_none(), "state": state})
        }).collect();
        json!({
            "phase": phase, "podIP": self.address, "podIPs": [{"ip": self.address}], "containerStatuses": containers,
            "conditions": [condition("PodScheduled", true), condition("Initialized", true),
                condition("ContainersReady", ready), condition("Ready", ready)],
        })
    }
}

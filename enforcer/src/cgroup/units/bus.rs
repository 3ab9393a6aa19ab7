//! Calls systemd over D-Bus: starts slices and scopes, sets properties, stops slices.

use std::{env, io, os::unix::net::UnixStream, path::Path, time::Duration};

use tokio::{runtime::Handle, sync::Mutex};
use zbus::{Connection, zvariant::Value};

use super::{Property, UnitError, UnitName, Units, property::PropertyValue};

/// How long systemd may take to reply; its manager does one thing at a time, and reloading takes seconds on a busy
/// host.
const TIMEOUT: Duration = Duration::from_secs(15);

const DESTINATION: &str = "org.freedesktop.systemd1";
const MANAGER: &str = "/org/freedesktop/systemd1";
const INTERFACE: &str = "org.freedesktop.systemd1.Manager";
const PEER: &str = "org.freedesktop.DBus.Peer";

/// Where systemd shows that it has booted the host (`sd_booted(3)`).
const BOOTED: &str = "/run/systemd/system";

/// The socket of the system bus, unless the environment names another.
const BUS: &str = "/run/dbus/system_bus_socket";
const BUS_VARIABLE: &str = "DBUS_SYSTEM_BUS_ADDRESS";

/// Why systemd cannot be asked.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Absent {
    /// Another init runs here.
    #[error("this host was not booted by systemd ({BOOTED} does not exist)")]
    Init,
    /// The system bus does not answer.
    #[error("the system bus does not answer on {BUS}: {reason}; start dbus.socket")]
    Bus {
        /// The error.
        reason: String,
    },
}

/// Checks whether systemd can be asked here.
pub fn is_there() -> Result<(), Absent> {
    if !Path::new(BOOTED).is_dir() {
        return Err(Absent::Init);
    }
    // Another address can only be tested by a connection, which the first call makes.
    if env::var_os(BUS_VARIABLE).is_some() {
        return Ok(());
    }
    let reported = |error: io::Error| Absent::Bus { reason: error.to_string() };
    UnixStream::connect(BUS).map(drop).map_err(reported)
}

/// systemd, on the system bus.
///
/// It connects at the first call, and again after the connection broke.
#[derive(Debug, Default)]
pub struct Systemd {
    connection: Mutex<Option<Connection>>,
}

/// Properties in D-Bus form.
type Values<'a> = Vec<(&'a str, Value<'a>)>;

impl Systemd {
    /// Creates it without a connection.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Wraps it for callers that may block: the calls are made on `runtime`, which must be running elsewhere.
    #[must_use]
    pub fn blocking(self, runtime: Handle) -> Blocking {
        Blocking { systemd: self, runtime }
    }

    /// Starts a slice; a running one is left alone.
    pub async fn start_slice(&self, slice: &UnitName) -> Result<(), UnitError> {
        // systemd hands a controller on only where a unit accounts for it, or has a property of it set.
        let mut properties: Values<'_> =
            ["CPUAccounting", "IOAccounting", "MemoryAccounting", "TasksAccounting"]
                .map(|name| (name, Value::from(true)))
                .into();
        properties.push(("CPUWeight", Value::from(100_u64)));
        properties.push(("Description", Value::from(format!("enforcer: pods in {slice}"))));
        match self.start_transient(slice, properties).await {
            // It may be loaded but not running, such as after a property of it was set.
            Err(error) if error.is_there_already() => {
                self.call("StartUnit", slice, &(slice.as_str(), "replace")).await
            }
            result => result,
        }
    }

    /// Makes a scope in a slice with one process in it. The process is moved a moment after the reply.
    ///
    /// The scope is delegated with all controllers, and systemd forgets it as soon as it is empty.
    pub async fn start_scope(&self, scope: &UnitName, slice: &UnitName, pid: u32) -> Result<(), UnitError> {
        let properties = vec![
            ("Description", Value::from(format!("enforcer: container {scope}"))),
            ("Slice", Value::from(slice.as_str())),
            ("PIDs", Value::from(vec![pid])),
            ("Delegate", Value::from(true)),
            ("CollectMode", Value::from("inactive-or-failed")),
            // Otherwise it is a share of the kernel's limit, which the plan does not know.
            ("TasksMax", Value::from(u64::MAX)),
        ];
        self.start_transient(scope, properties).await
    }

    /// Moves a process into a running scope.
    pub async fn attach(&self, scope: &UnitName, pid: u32) -> Result<(), UnitError> {
        self.call("AttachProcessesToUnit", scope, &(scope.as_str(), "", vec![pid])).await
    }

    async fn start_transient(&self, unit: &UnitName, properties: Values<'_>) -> Result<(), UnitError> {
        let beside: Vec<(&str, Values<'_>)> = Vec::new();
        self.call("StartTransientUnit", unit, &(unit.as_str(), "fail", properties, beside)).await
    }

    async fn set(&self, unit: &UnitName, properties: &[Property]) -> Result<(), UnitError> {
        let values: Values<'_> = properties
            .iter()
            .map(|Property { name, value }| match value {
                PropertyValue::Number(number) => (*name, Value::from(*number)),
                PropertyValue::Mask(mask) => (*name, Value::from(mask.clone())),
            })
            .collect();
        self.call("SetUnitProperties", unit, &(unit.as_str(), true, values)).await
    }

    async fn settle(&self) -> Result<(), UnitError> {
        // systemd replies before it writes the files, but writes them before it reads the next message.
        self.send(PEER, "Ping", &()).await.map_err(|source| UnitError::Unreachable { source })
    }

    /// Has systemd read its units' files again.
    pub async fn reload(&self) -> Result<(), UnitError> {
        self.send(INTERFACE, "Reload", &()).await.map_err(|source| UnitError::Unreachable { source })
    }

    async fn stop(&self, unit: &UnitName) -> Result<(), UnitError> {
        match self.call("StopUnit", unit, &(unit.as_str(), "replace")).await {
            Err(error) if error.is_gone() => Ok(()),
            result => result,
        }
    }

    async fn call<B>(&self, call: &'static str, unit: &UnitName, body: &B) -> Result<(), UnitError>
    where
        B: serde::Serialize + zbus::zvariant::DynamicType + Sync,
    {
        self.send(INTERFACE, call, body).await.map_err(|source| match *source {
            zbus::Error::MethodError(..) => UnitError::Refused { call, unit: unit.clone(), source },
            _ => UnitError::Unreachable { source },
        })
    }

    async fn send<B>(
        &self,
        interface: &'static str,
        call: &'static str,
        body: &B,
    ) -> Result<(), Box<zbus::Error>>
    where
        B: serde::Serialize + zbus::zvariant::DynamicType + Sync,
    {
        let mut held = self.connection.lock().await;
        let connection = match held.take() {
            Some(connection) => connection,
            None => connect().await?,
        };
        let result = connection.call_method(Some(DESTINATION), MANAGER, Some(interface), call, body).await;
        // After any other error the next call makes a new connection.
        if matches!(result, Ok(_) | Err(zbus::Error::MethodError(..))) {
            *held = Some(connection);
        }
        Ok(result.map(drop)?)
    }
}

async fn connect() -> zbus::Result<Connection> {
    zbus::connection::Builder::system()?.method_timeout(TIMEOUT).build().await
}

/// [`Systemd`] for callers that may block.
#[derive(Debug)]
pub struct Blocking {
    systemd: Systemd,
    runtime: Handle,
}

impl Blocking {
    /// Has systemd read its units' files again.
    pub fn reload(&self) -> Result<(), UnitError> {
        self.runtime.block_on(self.systemd.reload())
    }
}

impl Units for Blocking {
    fn start_slice(&self, slice: &UnitName) -> Result<(), UnitError> {
        self.runtime.block_on(self.systemd.start_slice(slice))
    }

    fn set(&self, unit: &UnitName, properties: &[Property]) -> Result<(), UnitError> {
        self.runtime.block_on(self.systemd.set(unit, properties))
    }

    fn settle(&self) -> Result<(), UnitError> {
        self.runtime.block_on(self.systemd.settle())
    }

    fn stop_slice(&self, slice: &UnitName) -> Result<(), UnitError> {
        self.runtime.block_on(self.systemd.stop(slice))
    }
}

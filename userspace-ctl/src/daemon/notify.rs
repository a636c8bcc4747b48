// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tells the service manager how the daemon is: `sd_notify`, a datagram to `$NOTIFY_SOCKET`.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The service manager, if there is one.
#[derive(Debug)]
pub struct Notify {
    to: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
    status: String,
}

impl Notify {
    /// As the environment says.
    pub fn from_environment() -> Notify {
        let variable = |name| std::env::var(name).ok();
        let mut notify = Notify::to(variable("NOTIFY_SOCKET").as_deref());
        let ours = variable("WATCHDOG_PID").is_none_or(|pid| pid.parse() == Ok(std::process::id()));
        notify.watchdog = variable("WATCHDOG_USEC")
            .filter(|_| ours)
            .and_then(|usec| usec.parse().ok())
            .filter(|usec| *usec > 0)
            .map(Duration::from_micros);
        notify
    }

    /// To this address; `@` in front means the abstract namespace.
    fn to(address: Option<&str>) -> Notify {
        let to = address.and_then(|text| {
            let address = match text.strip_prefix('@') {
                Some(name) => SocketAddr::from_abstract_name(name).ok()?,
                None => SocketAddr::from_pathname(text).ok()?,
            };
            let socket = UnixDatagram::unbound().ok()?;
            socket.set_nonblocking(true).ok()?;
            Some((socket, address))
        });
        Notify {
            to,
            watchdog: None,
            status: String::new(),
        }
    }

    /// How often the watchdog wants to hear of us: twice in its time.
    pub fn watchdog(&self) -> Option<Duration> {
        self.to.as_ref()?;
        self.watchdog.map(|time| time / 2)
    }

    /// Everything is set up, or set up again.
    pub fn ready(&self) {
        self.send("READY=1");
    }

    /// The configuration is being read again; [`Notify::ready`] ends that.
    pub fn reloading(&self, since_boot: Duration) {
        self.send(&format!(
            "RELOADING=1\nMONOTONIC_USEC={}",
            since_boot.as_micros()
        ));
    }

    /// The daemon ends.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// The daemon lives.
    pub fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    /// One line for people. What was said last is not said again.
    pub fn status(&mut self, status: String) {
        if self.status != status {
            self.send(&format!("STATUS={}", status.replace('\n', " ")));
            self.status = status;
        }
    }

    /// What cannot be delivered at once is lost: nobody may make us wait.
    fn send(&self, text: &str) {
        if let Some((socket, address)) = &self.to {
            let _ = socket.send_to_addr(text.as_bytes(), address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_manager_hears() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let mut notify = Notify::to(path.to_str());
        notify.ready();
        notify.status("two\nlines".to_owned());
        notify.status("two\nlines".to_owned());
        notify.stopping();
        for expected in ["READY=1", "STATUS=two lines", "STOPPING=1"] {
            let mut buffer = [0; 100];
            let length = manager.recv(&mut buffer).unwrap();
            assert_eq!(std::str::from_utf8(&buffer[..length]), Ok(expected));
        }
    }

    #[test]
    fn nobody_listens() {
        for address in [
            None,
            Some("/nonexistent/notify"),
            Some("@agentzip-nobody"),
            Some(""),
        ] {
            let notify = Notify::to(address);
            notify.ready();
            assert_eq!(notify.watchdog(), None);
        }
    }
}

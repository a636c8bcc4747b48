// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Answers requests of the socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;

use super::entry::{Entry, Listed};
use super::{mark, Daemon};
use crate::authority::{Authority, Uid};
use crate::directory::Directory;
use crate::governor::{Id, Input};
use crate::protocol::{ErrorCode, Request, Response, Source};
use crate::restorer::plans::Plans;
use crate::socket::Incoming;
use crate::ObjectName;

impl Daemon {
    pub(super) fn serve(&mut self) {
        match self.server.turn() {
            Ok(requests) => requests
                .into_iter()
                .for_each(|request| self.answer(request)),
            Err(error) => self.warn("socket", &error.to_string()),
        }
    }

    /// Answers a request at once, or keeps its token for later.
    fn answer(&mut self, incoming: Incoming) {
        let token = incoming.token;
        let response = match self.carry_out(incoming) {
            Ok(Some(response)) => response,
            Ok(None) => return,
            Err(refusal) => refusal,
        };
        self.server.reply(token, response);
    }

    /// `None`: the answer has been given, or comes later.
    fn carry_out(&mut self, incoming: Incoming) -> Result<Option<Response>, Response> {
        let Incoming {
            token,
            uid,
            request,
            ..
        } = incoming;
        Ok(Some(match request {
            // The server answers it itself.
            Request::Hello { .. } => Response::Done,
            Request::Hint { cgroup, hint } => {
                let directory = self.directory(&cgroup)?;
                self.authority.hint(uid, &directory)?;
                let id = self.sandbox(&directory)?;
                // The answer first: the client need not wait for what follows.
                self.server.reply(token, Response::Done);
                self.outdate_xattr(id);
                self.hint(id, hint, Source::Socket);
                return Ok(None);
            }
            Request::Attach { cgroup, attributes } => {
                let directory = self.directory(&cgroup)?;
                let attributes = self.authority.attach(uid, &directory, attributes)?;
                self.not_nested(&directory)?;
                let owner = directory.ownership().map_or(uid, |owner| Uid(owner.uid));
                self.shall_be(
                    Arc::new(directory),
                    owner,
                    attributes,
                    Source::Socket,
                    Some(token),
                );
                return Ok(None);
            }
            Request::Detach { cgroup } => {
                let directory = self.directory(&cgroup)?;
                self.authority.detach(uid, &directory)?;
                let id = self.sandbox(&directory)?;
                self.drop_entry(id, "asked", true);
                Response::Done
            }
            Request::Quiesce { cgroup } => {
                let directory = self.directory(&cgroup)?;
                self.authority.hint(uid, &directory)?;
                let id = self.sandbox(&directory)?;
                self.will_note(id);
                if let Some(entry) = self.entries.get_mut(&id) {
                    entry.quiescing.push(token);
                    mark::write(&entry.directory, mark::QUIESCED, "1");
                }
                self.feed(Input::Quiesce(id));
                return Ok(None);
            }
            Request::Release { cgroup } => {
                let directory = self.directory(&cgroup)?;
                self.authority.hint(uid, &directory)?;
                let id = self.sandbox(&directory)?;
                self.will_note(id);
                mark::remove(&directory, mark::QUIESCED);
                self.feed(Input::Release(id));
                let reason = format!("{}: released before all of it was back", directory.name());
                self.answer_quiesce(id, &Response::error(ErrorCode::Failed, reason));
                Response::Done
            }
            Request::Status {
                cgroup: Some(cgroup),
            } => {
                let directory = self.directory(&cgroup)?;
                self.authority.status(uid, &directory)?;
                let id = self.sandbox(&directory)?;
                self.board();
                match self.listed(id) {
                    Some(listed) => Response::result(&listed),
                    None => return Err(not_found(&directory)),
                }
            }
            Request::Status { cgroup: None } => Response::result(&json!({
                "prefetch": self.board(),
                "module": self.module,
                "host": self.governor.overview(),
                "work": self.totals.report(),
                "socket": self.server.counters(),
                "uptime_ms": u64::try_from(self.now().as_millis()).unwrap_or(u64::MAX),
            })),
            Request::List => {
                self.board();
                self.refresh_owners();
                let seen = |entry: &Entry| Authority::sees(uid, entry.owner);
                let seen = self.entries.iter().filter(|(_, entry)| seen(entry));
                let ids = seen.map(|(id, _)| *id);
                let listed: Vec<Listed> = ids.filter_map(|id| self.listed(id)).collect();
                Response::result(&listed)
            }
            Request::Admit { bytes, template } => {
                self.authority.admit(uid)?;
                let bytes = bytes.unwrap_or_else(|| self.usual_need(uid, template.as_ref()));
                Response::result(&self.governor.admit(bytes))
            }
            Request::Subscribe => {
                self.authority.subscribe(uid)?;
                self.server.subscribe(token.client);
                Response::Done
            }
            Request::PlanList => {
                self.authority.config(uid)?;
                self.plans(token, Plans::List)?;
                return Ok(None);
            }
            Request::PlanExport {
                template,
                tool,
                path,
            } => {
                self.authority.config(uid)?;
                let plans = Plans::Export {
                    template,
                    tool,
                    path: absolute(path)?,
                };
                self.plans(token, plans)?;
                return Ok(None);
            }
            Request::PlanImport { path } => {
                self.authority.config(uid)?;
                let path = absolute(path)?;
                self.plans(token, Plans::Import { path })?;
                return Ok(None);
            }
            Request::Config => {
                self.authority.config(uid)?;
                Response::result(self.governor.config())
            }
        }))
    }

    fn directory(&self, path: &Path) -> Result<Directory, Response> {
        Ok(self.mount.directory(path)?)
    }

    /// The sandbox in a directory; one that was attached by command a moment ago is found, too.
    fn sandbox(&mut self, directory: &Directory) -> Result<Id, Response> {
        let id = directory.id();
        self.adopt_one(directory);
        match self.entries.contains_key(&id) {
            true => Ok(id),
            false => Err(not_found(directory)),
        }
    }

    /// Sandboxes do not nest: what is below one belongs to it.
    fn not_nested(&self, directory: &Directory) -> Result<(), Response> {
        let inside = directory.inside();
        let other = self.entries.values().find(|entry| {
            let other = entry.directory.inside();
            other != inside && (other.starts_with(inside) || inside.starts_with(other))
        });
        match other {
            None => Ok(()),
            Some(other) => Err(Response::error(
                ErrorCode::Failed,
                format!(
                    "{}: sandboxes do not nest, and {} is one",
                    directory.name(),
                    other.name()
                ),
            )),
        }
    }

    fn listed(&self, id: Id) -> Option<Listed> {
        let entry = self.entries.get(&id)?;
        Some(entry.listed(self.governor.view(id, self.now())?, self.shown(id)))
    }

    /// What sandboxes of a template need, or all of them when there is none: the mean of those that a user may see.
    fn usual_need(&self, uid: Uid, template: Option<&ObjectName>) -> u64 {
        let now = self.now();
        let alike = self.entries.iter().filter(|(_, entry)| {
            let alike = template.is_none() || entry.attributes.template.as_ref() == template;
            alike && Authority::sees(uid, entry.owner)
        });
        let needs: Vec<u64> = alike
            .filter_map(|(id, _)| self.governor.view(*id, now))
            .map(|view| view.current.saturating_add(view.taken))
            .collect();
        let sum = needs
            .iter()
            .fold(0u64, |sum, need| sum.saturating_add(*need));
        sum.checked_div(needs.len() as u64).unwrap_or(0)
    }
}

/// Where the daemon is started says nothing about the client.
fn absolute(path: PathBuf) -> Result<PathBuf, Response> {
    match path.is_absolute() {
        true => Ok(path),
        false => Err(Response::error(
            ErrorCode::Failed,
            format!("{}: a path from the root is expected", path.display()),
        )),
    }
}

fn not_found(directory: &Directory) -> Response {
    let reason = format!(
        "{}: no such sandbox; attach it, or set user.agentzip.template on its directory",
        directory.name()
    );
    Response::error(ErrorCode::NotFound, reason)
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Who may do what: the one place for it, for the socket and for xattrs.
//!
//! | who | may |
//! |---|---|
//! | root | everything |
//! | the owner of a cgroup's directory | say what its agent does (hint), see its sandbox |
//! | the owner, where a tenant entry covers the cgroup | attach and detach it, in the entry's domain |
//! | any uid that has a tenant entry | ask for admission, watch events of its own cgroups |
//! | everyone | read the status of the host |
//!
//! An xattr counts as said by the owner of the directory, for no one else but root can have set it.
//! Where that does not hold, since the directory is root's and others may write to it, it is not
//! obeyed at all. Nobody but root can name a domain that no entry grants: nothing is ever shared
//! across domains.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::attributes::Attributes;
use crate::directory::{self, Directory};
use crate::error::{Error, Result};
use crate::name::ObjectName;

/// Most tenant entries.
pub const MAX_TENANTS: usize = 4096;

/// What an unprivileged user may attach: cgroups that it owns, below a path, in a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// User id, as the host sees it; not 0.
    pub uid: u32,
    /// The cgroup at or below which its sandboxes are: a path in the hierarchy, or below the mount.
    pub tree: PathBuf,
    /// The domain of its sandboxes.
    pub domain: ObjectName,
}

/// A user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Uid(pub u32);

impl Uid {
    /// The one who may do everything.
    pub const ROOT: Uid = Uid(0);

    /// It is root.
    pub fn is_root(self) -> bool {
        self == Uid::ROOT
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uid {}", self.0)
    }
}

/// Why something may not be done.
#[derive(Debug, thiserror::Error)]
pub enum Denied {
    /// The cgroup belongs to someone else.
    #[error("{cgroup} belongs to {owner}, not to {who}; chown its directory, or ask as its owner")]
    NotOwner {
        /// The cgroup.
        cgroup: String,
        /// To whom it belongs.
        owner: Uid,
        /// Who asked.
        who: Uid,
    },
    /// No tenant entry covers it.
    #[error("no tenant entry of the configuration lets {who} attach {cgroup}")]
    NoTenant {
        /// The cgroup.
        cgroup: String,
        /// Who asked.
        who: Uid,
    },
    /// A tenant entry covers it, but with another domain.
    #[error("{who} may attach {cgroup} in domain {granted} only, not in {asked}")]
    Domain {
        /// The cgroup.
        cgroup: String,
        /// Who asked.
        who: Uid,
        /// The domain of the entry.
        granted: ObjectName,
        /// The domain that was asked for.
        asked: ObjectName,
    },
    /// The directory is root's and others may write to it, so its xattrs may be anyone's.
    #[error(
        "{cgroup} is root's but others may write to it, so its xattrs may be anyone's; \
         try: chmod go-w on its directory, or chown it"
    )]
    Anyone {
        /// The cgroup.
        cgroup: String,
    },
    /// Only root may do that.
    #[error("{what} is for root only, not for {who}")]
    RootOnly {
        /// What was asked for.
        what: &'static str,
        /// Who asked.
        who: Uid,
    },
    /// Only root and tenants may do that.
    #[error("{what} is for root and for users with a tenant entry, and {who} has none")]
    TenantsOnly {
        /// What was asked for.
        what: &'static str,
        /// Who asked.
        who: Uid,
    },
    /// The directory cannot be looked at.
    #[error("cannot look at {cgroup}: {cause}")]
    Gone {
        /// The cgroup.
        cgroup: String,
        /// Why.
        cause: std::io::Error,
    },
}

/// The rules, with the tenants of the configuration.
#[derive(Clone, Debug, Default)]
pub struct Authority {
    /// With trees as paths in the hierarchy, deepest first.
    tenants: Vec<Tenant>,
}

impl Authority {
    /// The rules for these tenants, on the cgroup mount at `mount`.
    ///
    /// # Errors
    ///
    /// When an entry names root or a path with `..`, two entries give one user two domains for one
    /// tree, or there are more than [`MAX_TENANTS`].
    pub fn new(tenants: &[Tenant], mount: &Path) -> Result<Authority> {
        if tenants.len() > MAX_TENANTS {
            let problem = format!("more than {MAX_TENANTS} entries");
            return Err(Error::invalid("tenants", problem));
        }
        let mut known: Vec<Tenant> = Vec::with_capacity(tenants.len());
        for tenant in tenants {
            let object = || format!("tenant of uid {} at {}", tenant.uid, tenant.tree.display());
            if Uid(tenant.uid).is_root() {
                return Err(Error::invalid(object(), "root needs no entry; remove it"));
            }
            let tree = directory::inside(mount, &tenant.tree)?;
            let clash = |other: &&Tenant| other.uid == tenant.uid && other.tree == tree;
            if let Some(other) = known.iter().find(clash) {
                if other.domain != tenant.domain {
                    let problem = format!(
                        "has domain {} and domain {}; keep one entry",
                        other.domain, tenant.domain
                    );
                    return Err(Error::invalid(object(), problem));
                }
            }
            known.push(Tenant {
                tree,
                ..tenant.clone()
            });
        }
        known.sort_by_key(|tenant| std::cmp::Reverse(tenant.tree.components().count()));
        Ok(Authority { tenants: known })
    }

    /// May `who` say what the agent in this cgroup does?
    ///
    /// # Errors
    ///
    /// When not, why.
    pub fn hint(&self, who: Uid, directory: &Directory) -> Result<(), Denied> {
        owner(who, directory)
    }

    /// May `who` attach this cgroup with these attributes? Returns them with the domain that counts:
    /// `None` only for root, who named none.
    ///
    /// # Errors
    ///
    /// When not, why.
    pub fn attach(
        &self,
        who: Uid,
        directory: &Directory,
        mut attributes: Attributes,
    ) -> Result<Attributes, Denied> {
        owner(who, directory)?;
        if who.is_root() {
            return Ok(attributes);
        }
        let granted = &self.tenant(who, directory)?.domain;
        if let Some(asked) = attributes.domain.take().filter(|asked| asked != granted) {
            return Err(Denied::Domain {
                cgroup: directory.name(),
                who,
                granted: granted.clone(),
                asked,
            });
        }
        attributes.domain = Some(granted.clone());
        Ok(attributes)
    }

    /// May `who` detach this cgroup?
    ///
    /// # Errors
    ///
    /// When not, why.
    pub fn detach(&self, who: Uid, directory: &Directory) -> Result<(), Denied> {
        owner(who, directory)?;
        match who.is_root() {
            true => Ok(()),
            false => self.tenant(who, directory).map(|_| ()),
        }
    }

    /// For whom do the xattrs of this directory speak?
    ///
    /// # Errors
    ///
    /// When nobody knows.
    pub fn speaker(directory: &Directory) -> Result<Uid, Denied> {
        let ownership = directory.ownership().map_err(|cause| Denied::Gone {
            cgroup: directory.name(),
            cause,
        })?;
        match Uid(ownership.uid) {
            Uid::ROOT if ownership.shared => Err(Denied::Anyone {
                cgroup: directory.name(),
            }),
            uid => Ok(uid),
        }
    }

    /// May `who` ask for admission?
    ///
    /// # Errors
    ///
    /// When not, why.
    pub fn admit(&self, who: Uid) -> Result<(), Denied> {
        self.known(who, "admit")
    }

    /// May `who` subscribe to events? Others than root then see those of their own cgroups only:
    /// [`sees`](Authority::sees).
    ///
    /// # Errors
    ///
    /// When not, why.
    pub fn subscribe(&self, who: Uid) -> Result<(), Denied> {
        self.known(who, "subscribe")
    }

    /// May `who` see the sandbox in this cgroup?
    ///
    /// # Errors
    ///
    /// When not, why.
    pub fn status(&self, who: Uid, directory: &Directory) -> Result<(), Denied> {
        owner(who, directory)
    }

    /// May `who` see something of `owner`: an event, or a sandbox in the list?
    pub fn sees(who: Uid, owner: Uid) -> bool {
        who.is_root() || who == owner
    }

    /// May `who` see the configuration?
    ///
    /// # Errors
    ///
    /// When not, why.
    pub fn config(&self, who: Uid) -> Result<(), Denied> {
        match who.is_root() {
            true => Ok(()),
            false => Err(Denied::RootOnly {
                what: "config",
                who,
            }),
        }
    }

    fn known(&self, who: Uid, what: &'static str) -> Result<(), Denied> {
        match who.is_root() || self.tenants.iter().any(|tenant| tenant.uid == who.0) {
            true => Ok(()),
            false => Err(Denied::TenantsOnly { what, who }),
        }
    }

    /// The entry of the deepest tree that covers a cgroup. Paths suffice for that: no component is a
    /// symlink, and cgroups cannot be renamed.
    fn tenant(&self, who: Uid, directory: &Directory) -> Result<&Tenant, Denied> {
        let covers =
            |tenant: &&Tenant| tenant.uid == who.0 && directory.inside().starts_with(&tenant.tree);
        let tenant = self.tenants.iter().find(covers);
        tenant.ok_or_else(|| Denied::NoTenant {
            cgroup: directory.name(),
            who,
        })
    }
}

/// Root passes, others only when the directory is theirs.
fn owner(who: Uid, directory: &Directory) -> Result<(), Denied> {
    if who.is_root() {
        return Ok(());
    }
    let cgroup = || directory.name();
    let owner = match directory.ownership() {
        Ok(ownership) => Uid(ownership.uid),
        Err(cause) => {
            let cgroup = cgroup();
            return Err(Denied::Gone { cgroup, cause });
        }
    };
    match owner == who {
        true => Ok(()),
        false => Err(Denied::NotOwner {
            cgroup: cgroup(),
            owner,
            who,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Mount;
    use std::os::unix::fs::{chown, MetadataExt, PermissionsExt};

    fn name(text: &str) -> ObjectName {
        text.parse().unwrap()
    }

    fn tenant(uid: u32, tree: &str, domain: &str) -> Tenant {
        Tenant {
            uid,
            tree: tree.into(),
            domain: name(domain),
        }
    }

    fn asks(domain: Option<&str>) -> Attributes {
        Attributes {
            template: Some(name("t")),
            domain: domain.map(name),
            ..Attributes::default()
        }
    }

    /// A tree whose owner has entries for `a` (domain x) and `a/deep` (domain y); `b` has none.
    fn fixture() -> (tempfile::TempDir, Mount, Authority, Uid) {
        let dir = tempfile::tempdir().unwrap();
        let mut uid = dir.path().metadata().unwrap().uid();
        if uid == 0 {
            uid = 12_345;
        }
        for path in ["a", "a/deep", "a/deep/er", "b", "ab"] {
            let path = dir.path().join(path);
            std::fs::create_dir(&path).unwrap();
            // A no-op unless we are root.
            chown(&path, Some(uid), None).unwrap();
        }
        let mount = Mount::open(dir.path()).unwrap();
        let tenants = [
            tenant(uid, "/a", "x"),
            tenant(uid, &format!("{}/a/deep/", dir.path().display()), "y"),
            tenant(uid + 1, "b", "z"),
        ];
        let authority = Authority::new(&tenants, dir.path()).unwrap();
        (dir, mount, authority, Uid(uid))
    }

    #[test]
    fn the_owner_hints_and_attaches_what_is_granted() {
        let (_dir, mount, authority, owner) = fixture();
        let at = |path: &str| mount.directory(Path::new(path)).unwrap();
        let attach = |path, domain| authority.attach(owner, &at(path), asks(domain));
        assert_eq!(attach("a", None).unwrap().domain, Some(name("x")));
        assert_eq!(attach("a", Some("x")).unwrap().domain, Some(name("x")));
        assert_eq!(attach("a/deep/er", None).unwrap().domain, Some(name("y")));
        let refused = attach("a/deep", Some("x")).unwrap_err().to_string();
        assert!(refused.contains("in domain y only, not in x"), "{refused}");
        for path in ["b", "ab"] {
            let refused = attach(path, None).unwrap_err().to_string();
            assert!(refused.contains("no tenant entry"), "{refused}");
            assert!(authority.detach(owner, &at(path)).is_err());
            authority.hint(owner, &at(path)).unwrap();
        }
        authority.detach(owner, &at("a")).unwrap();
        authority.admit(owner).unwrap();
        authority.subscribe(owner).unwrap();
        assert!(authority.config(owner).is_err());
    }

    #[test]
    fn a_tenant_entry_does_not_make_an_owner() {
        let (_dir, mount, authority, owner) = fixture();
        let other = Uid(owner.0 + 1);
        let b = mount.directory(Path::new("b")).unwrap();
        for denied in [
            authority.hint(other, &b).unwrap_err(),
            authority.attach(other, &b, asks(None)).unwrap_err(),
            authority.detach(other, &b).unwrap_err(),
        ] {
            assert!(matches!(denied, Denied::NotOwner { .. }), "{denied}");
        }
        let stranger = Uid(owner.0 + 2);
        let denied = authority.admit(stranger).unwrap_err().to_string();
        assert!(denied.contains("has none"), "{denied}");
        assert!(!Authority::sees(stranger, owner));
        assert!(Authority::sees(owner, owner) && Authority::sees(Uid::ROOT, owner));
    }

    #[test]
    fn root_may_do_everything() {
        let (_dir, mount, authority, _) = fixture();
        let b = mount.directory(Path::new("b")).unwrap();
        authority.hint(Uid::ROOT, &b).unwrap();
        let attributes = authority.attach(Uid::ROOT, &b, asks(Some("q"))).unwrap();
        assert_eq!(attributes, asks(Some("q")));
        assert_eq!(
            authority.attach(Uid::ROOT, &b, asks(None)).unwrap(),
            asks(None)
        );
        authority.config(Uid::ROOT).unwrap();
        authority.admit(Uid::ROOT).unwrap();
    }

    #[test]
    fn whose_xattrs_they_are() {
        let (dir, mount, _, owner) = fixture();
        let a = mount.directory(Path::new("a")).unwrap();
        let mode = |mode| {
            let path = dir.path().join("a");
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        };
        mode(0o775);
        assert_eq!(Authority::speaker(&a).unwrap(), owner);
        // Root's directories can be made by root only.
        if chown(dir.path().join("a"), Some(0), None).is_ok() {
            let denied = Authority::speaker(&a).unwrap_err();
            assert!(matches!(denied, Denied::Anyone { .. }), "{denied}");
            mode(0o755);
            assert_eq!(Authority::speaker(&a).unwrap(), Uid::ROOT);
        }
    }

    #[test]
    fn entries_that_make_no_sense() {
        let mount = Path::new("/sys/fs/cgroup");
        for (tenants, reason) in [
            (vec![tenant(0, "a", "x")], "root needs no entry"),
            (vec![tenant(7, "a/../b", "x")], "without \"..\""),
            (
                vec![tenant(7, "a", "x"), tenant(7, "/sys/fs/cgroup/a/", "y")],
                "domain x and domain y",
            ),
        ] {
            let error = Authority::new(&tenants, mount).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}

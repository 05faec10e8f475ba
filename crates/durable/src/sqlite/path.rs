//! Where a file may lie.

use std::path::{Path, PathBuf};

use crate::store::StoreError;

/// Returns the absolute path of a file, if timers can be kept there.
pub(super) fn check(path: &Path) -> Result<PathBuf, StoreError> {
    if path.as_os_str().is_empty() || path.as_os_str() == ":memory:" {
        return Err(StoreError::Refused(
            "timers in a database without a file would end with the connection: name a file, or use \
             the store `Memory` for tests"
                .to_owned(),
        ));
    }
    if path.as_os_str().as_encoded_bytes().starts_with(b"file:") {
        return Err(StoreError::Refused(format!(
            "{path:?} is a URI of SQLite: give the path of the file alone"
        )));
    }
    // Later connections find the file even if the process has changed its folder.
    let path = std::path::absolute(path)
        .map_err(|error| StoreError::Refused(format!("the path {path:?}: {error}")))?;
    let Some(folder) = path.parent() else {
        return Err(StoreError::Refused(format!("{path:?} is no file")));
    };
    if !folder.is_dir() {
        return Err(StoreError::Refused(format!(
            "there is no folder {folder:?} for the file: create it"
        )));
    }
    if path.is_dir() {
        return Err(StoreError::Refused(format!(
            "{path:?} is a folder: name a file"
        )));
    }
    if let Some(kind) = network(&path, folder) {
        return Err(StoreError::Refused(format!(
            "{path:?} lies on a network file system ({kind}), where the locks and the shared memory \
             of SQLite do not work between machines: put it on a disk of this machine, or use a \
             database server"
        )));
    }
    Ok(path)
}

/// The kind of the network file system that has the file, or `None` for a local one.
#[cfg(target_os = "linux")]
fn network(path: &Path, folder: &Path) -> Option<String> {
    // Follow links, since the target has the file. A file that does not exist yet will be made in
    // the folder.
    let target = path
        .canonicalize()
        .or_else(|_| folder.canonicalize())
        .ok()?;
    let magic = rustix::fs::statfs(&target).ok()?.f_type;
    // The field is signed on some machines and unsigned on others. The numbers have 32 bits.
    let magic = u32::try_from(i128::from(magic) & 0xffff_ffff).ok()?;
    kind(magic, || {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        mounted(&mounts, &target)
    })
}

/// On other systems the kind of a file system is not known.
#[cfg(not(target_os = "linux"))]
fn network(_path: &Path, _folder: &Path) -> Option<String> {
    None
}

/// The numbers of file systems, from `linux/magic.h` and the manual page of statfs. 9p is not among
/// them: virtual machines use it for folders of their host.
#[cfg(target_os = "linux")]
fn kind(magic: u32, mounted: impl FnOnce() -> Option<String>) -> Option<String> {
    let kind = match magic {
        0x0000_6969 => "NFS",
        0x0000_517b => "SMB",
        0xff53_4d42 => "CIFS",
        0xfe53_4d42 => "SMB2",
        0x0000_564c => "NCP",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x7375_7245 => "Coda",
        0x00c3_6400 => "Ceph",
        0x0bd0_0bd0 => "Lustre",
        0x1983_0326 => "BeeGFS",
        0x4750_4653 => "GPFS",
        // FUSE: local ones such as NTFS are among them, so the name of the kind decides.
        0x6573_5546 => {
            let kind = mounted()?;
            let name = kind.strip_prefix("fuse.").unwrap_or(&kind);
            return FUSE.contains(&name).then(|| kind.clone());
        }
        _ => return None,
    };
    Some(kind.to_owned())
}

/// Network file systems of FUSE.
#[cfg(target_os = "linux")]
const FUSE: [&str; 12] = [
    "sshfs",
    "glusterfs",
    "s3fs",
    "rclone",
    "gcsfuse",
    "goofys",
    "mount-s3",
    "davfs",
    "curlftpfs",
    "ceph-fuse",
    "juicefs",
    "moosefs",
];

/// The kind of the file system at `target`, from the text of `/proc/self/mountinfo`: the one whose
/// mount point is the longest that leads to it, and the last of those.
#[cfg(target_os = "linux")]
fn mounted(mounts: &str, target: &Path) -> Option<String> {
    let mut found: Option<(usize, &str)> = None;
    for line in mounts.lines() {
        // "36 35 98:0 /root /mount/point options.. - kind source super-options"
        let (left, right) = line.split_once(" - ")?;
        let point = left.split(' ').nth(4)?;
        let kind = right.split(' ').next()?;
        // Blanks in names are written as octal numbers.
        let point = point.replace("\\040", " ").replace("\\011", "\t");
        if target.starts_with(&point) && found.is_none_or(|(length, _)| point.len() >= length) {
            found = Some((point.len(), kind));
        }
    }
    found.map(|(_, kind)| kind.to_owned())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 22 0:35 / /home/ann/far\\040away rw,nosuid - fuse.sshfs ann@far:/ rw
41 22 0:36 / /home/ann/disk rw,nosuid - fuseblk /dev/sdb1 rw
42 22 0:37 / /data rw - ext4 /dev/vdb rw
43 22 0:38 / /data rw - fuse.rclone bucket: rw
";

    #[test]
    fn the_kind_of_a_mount_is_that_of_the_longest_and_last_mount_point() {
        let kind = |target: &str| mounted(MOUNTS, Path::new(target));
        assert_eq!(kind("/home/ann").as_deref(), Some("ext4"));
        assert_eq!(
            kind("/home/ann/far away/x.db").as_deref(),
            Some("fuse.sshfs")
        );
        assert_eq!(kind("/home/ann/disk/x.db").as_deref(), Some("fuseblk"));
        assert_eq!(kind("/home/ann/disks").as_deref(), Some("ext4"));
        assert_eq!(kind("/data/x.db").as_deref(), Some("fuse.rclone"));
    }

    #[test]
    fn network_file_systems_are_seen_by_their_number_and_those_of_fuse_by_name() {
        let none = || None;
        assert_eq!(kind(0x6969, none).as_deref(), Some("NFS"));
        assert_eq!(kind(0xff53_4d42, none).as_deref(), Some("CIFS"));
        assert_eq!(kind(0xef53, none), None);
        let fuse = |name: &str| kind(0x6573_5546, || Some(name.to_owned()));
        assert_eq!(fuse("fuse.sshfs").as_deref(), Some("fuse.sshfs"));
        assert_eq!(fuse("fuseblk"), None);
    }
}

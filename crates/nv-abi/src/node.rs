//! Device nodes by their paths.

/// A device node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Node {
    /// `/dev/nvidiactl`.
    Control,
    /// `/dev/nvidiaN`, by its minor number.
    Gpu(usize),
    /// `/dev/nvidia-uvm`.
    Uvm,
}

impl Node {
    /// The node at a path; whether it exists is for the driver to say.
    ///
    /// # Examples
    /// ```
    /// use vrampager_nv_abi::Node;
    ///
    /// assert_eq!(Node::at("/dev/nvidia12"), Some(Node::Gpu(12)));
    /// assert_eq!(Node::at("/dev/nvidia-modeset"), None);
    /// ```
    #[must_use]
    pub fn at(path: &str) -> Option<Self> {
        match path.strip_prefix("/dev/nvidia")? {
            "ctl" => Some(Self::Control),
            "-uvm" => Some(Self::Uvm),
            // What `path` writes, and no other spelling of the number.
            digits => {
                let gpu = digits.parse().ok().map(Self::Gpu)?;
                (gpu.path() == path).then_some(gpu)
            }
        }
    }

    /// Whether an open that fails with this number says that the driver is not there, or not for
    /// this user: `ENOENT`, `ENXIO`, `ENODEV`, `EACCES` or `EPERM` of Linux's `errno.h`.
    ///
    /// # Examples
    /// ```
    /// use vrampager_nv_abi::Node;
    ///
    /// assert!(Node::is_missing(2));
    /// assert!(!Node::is_missing(16), "it is there, and busy");
    /// ```
    #[must_use]
    pub const fn is_missing(errno: i32) -> bool {
        matches!(errno, 1 | 2 | 6 | 13 | 19)
    }

    /// Where it is.
    #[must_use]
    pub fn path(self) -> String {
        match self {
            Self::Control => "/dev/nvidiactl".to_owned(),
            Self::Gpu(minor) => format!("/dev/nvidia{minor}"),
            Self::Uvm => "/dev/nvidia-uvm".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_at_its_path_and_nothing_else_is() {
        for node in [Node::Control, Node::Uvm, Node::Gpu(0), Node::Gpu(255)] {
            assert_eq!(Node::at(&node.path()), Some(node));
        }
        for path in [
            "/dev/nvidia",
            "/dev/nvidia-1",
            "/dev/nvidia+1",
            "/dev/nvidia1x",
            "/dev/nvidia007",
            "/dev/nvidia00",
            "nvidia1",
        ] {
            assert_eq!(Node::at(path), None, "{path}");
        }
    }
}

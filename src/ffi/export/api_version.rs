//! Versions of the four interfaces: plug-ins refuse a server with another major version, or an
//! older minor one.

use conch_abi as abi;

use super::export;
use crate::boundary::write;

export! {
    fn TRITONSERVER_ApiVersion(major: *mut u32, minor: *mut u32) {
        write(major, abi::TRITONSERVER_API_VERSION_MAJOR)?;
        write(minor, abi::TRITONSERVER_API_VERSION_MINOR)
    }

    fn TRITONBACKEND_ApiVersion(major: *mut u32, minor: *mut u32) {
        write(major, abi::TRITONBACKEND_API_VERSION_MAJOR)?;
        write(minor, abi::TRITONBACKEND_API_VERSION_MINOR)
    }

    fn TRITONCACHE_ApiVersion(major: *mut u32, minor: *mut u32) {
        write(major, abi::TRITONCACHE_API_VERSION_MAJOR)?;
        write(minor, abi::TRITONCACHE_API_VERSION_MINOR)
    }

    fn TRITONREPOAGENT_ApiVersion(major: *mut u32, minor: *mut u32) {
        write(major, abi::TRITONREPOAGENT_API_VERSION_MAJOR)?;
        write(minor, abi::TRITONREPOAGENT_API_VERSION_MINOR)
    }
}

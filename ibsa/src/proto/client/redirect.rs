//! Where requests go, and where answers come from.

use ibdev::{MadAddr, MadSource};
use ibwire::mad::ClassPortInfo;
use ibwire::{Lid, PKey};

use super::request::RedirectFault;

/// Whether a MAD comes from where the request went: the SA always has a LID.
pub(super) fn is_from(from: &MadSource, to: &MadAddr) -> bool {
    from.slid == to.av.dlid
}

/// The address that a redirection names (spec/sa.md 7.3).
pub(super) fn redirected(
    sa: &MadAddr,
    p_keys: &[PKey],
    info: &ClassPortInfo,
) -> Result<MadAddr, RedirectFault> {
    let redirect = &info.redirect;
    if redirect.is_none() {
        return Err(RedirectFault::Nowhere);
    }
    let same = |p_key: &PKey| p_key.base() == redirect.pkey.base() && p_key.base() != 0;
    let pkey_index = p_keys.iter().position(same).ok_or(RedirectFault::Partition(redirect.pkey))?;
    let mut to = *sa;
    to.pkey_index = pkey_index as u16;
    (to.qpn, to.qkey, to.av.sl) = (redirect.qpn, redirect.qkey, redirect.sl);
    // A GID alone is reached by a GRH through the SA's own LID.
    if redirect.lid != Lid::NONE {
        to.av.dlid = redirect.lid;
    }
    to.av.grh = match redirect.gid.is_unspecified() {
        true => None,
        false => Some(ibdev::GlobalRoute {
            dgid: redirect.gid,
            sgid_index: sa.av.grh.map_or(0, |grh| grh.sgid_index),
            flow_label: redirect.flow_label,
            hop_limit: 0xff,
            traffic_class: redirect.traffic_class,
        }),
    };
    Ok(to)
}

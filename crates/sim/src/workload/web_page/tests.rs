//! A client and a server, with a line in each direction that drops given packets.

"""The bare-metal driver: units are physical machines that are imaged and started over the network, by their BMCs."""

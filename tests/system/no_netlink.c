/* Has a browser hear nothing of the machine's interfaces: it gives up what it loads, also from this machine, when one
 * comes or goes, as tests of virtual machines have it all the time.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/socket.h>
int socket(int family, int type, int protocol) {
    if (family == AF_NETLINK) {
        errno = EAFNOSUPPORT;
        return -1;
    }
    return ((int (*)(int, int, int))dlsym(RTLD_NEXT, "socket"))(family, type, protocol);
}

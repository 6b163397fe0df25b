/* The spawner's directories and its socket: made, locked against a second spawner, and swept of dead sockets. */
#ifndef KP_PLACE_H
#define KP_PLACE_H

#include "birth.h"
#include "spawner.h"

/* Fill in the place and return the listening socket, or -1 after saying why on stderr. Exits with EXIT_LOCKED when
 * another spawner works there. */
int place_prepare(struct place *place, const struct spawner_options *options);

#endif
